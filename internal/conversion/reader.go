// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package conversion

import (
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/go-json-experiment/json/jsontext"
)

// A reader reads JSON. After the first error, which it keeps, it reads no more.
type reader struct {
	*jsontext.Decoder
	err error
}

// reset starts with another text. What the API server decodes is taken, too: names that are there twice, text that is
// not UTF-8.
func (r *reader) reset(in io.Reader) {
	r.Reset(in, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	r.err = nil
}

// fail keeps an error, but not the path that it names. A decoder that moves its buffer while it reads a value takes that
// from what is there now, which depends on what it has read before.
func (r *reader) fail(err error) {
	if problem, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		err = &jsontext.SyntacticError{ByteOffset: problem.ByteOffset, Err: problem.Err}
	}
	r.err = err
}

// members are the names in an object, of which the loop reads the values.
func (r *reader) members() iter.Seq[string] {
	return func(yield func(string) bool) {
		for r.token('{'); r.err == nil && r.PeekKind() != '}'; {
			if name := r.token('"'); r.err != nil || !yield(name.String()) {
				return
			}
		}
		r.token('}')
	}
}

// elements loops over an array, of which the loop reads the values. It may be null.
func (r *reader) elements() iter.Seq[int] {
	return func(yield func(int) bool) {
		if r.PeekKind() == 'n' {
			r.skip()
			return
		}
		r.token('[')
		for i := 0; r.err == nil && r.PeekKind() != ']'; i++ {
			if !yield(i) {
				return
			}
		}
		r.token(']')
	}
}

// token is the next one, which has to be of a kind.
func (r *reader) token(kind jsontext.Kind) jsontext.Token {
	if r.err != nil {
		return jsontext.Null
	}
	token, err := r.ReadToken()
	if err == nil && token.Kind() != kind {
		err = fmt.Errorf("want %s at %q, got %s", kind, r.StackPointer(), token.Kind())
	}
	r.fail(err)
	return token
}

// text is a string.
func (r *reader) text() string {
	token := r.token('"')
	if r.err != nil {
		return ""
	}
	return token.String()
}

// value is what comes next, as it is written. It holds until the next is read.
func (r *reader) value() jsontext.Value {
	if r.err != nil {
		return nil
	}
	value, err := r.ReadValue()
	r.fail(err)
	return value
}

// skip passes over what comes next, however large.
func (r *reader) skip() {
	if r.err == nil {
		r.fail(r.SkipValue())
	}
}
