// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package invariants

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"container.training/useless/api/useless/v1beta1"
)

// logged returns a line of an audit log with the response to a user's request.
func logged(user string, code int, answer string) string {
	return fmt.Sprintf(`{"stage":"ResponseComplete","user":{"username":%q},"userAgent":"%[1]s-1/v0","responseStatus":{"code":%d},"responseObject":%s}`, user, code, answer) + "\n"
}

func TestAuthors(t *testing.T) {
	const (
		made     = `{"metadata":{"uid":"m-0","resourceVersion":"7"}}`
		gone     = `{"kind":"Status","details":{"uid":"m-0"}}`
		refused  = `{"kind":"Status","details":{"name":"m-0"}}`
		all      = `{"metadata":{"resourceVersion":"6"},"items":[{"metadata":{"uid":"m-1"}},{"metadata":{"uid":"m-0"}}]}`
		held     = `{"metadata":{"uid":"m-0","resourceVersion":"7","deletionTimestamp":"2026-11-21T12:00:00Z","finalizers":["held"]}}`
		released = `{"metadata":{"uid":"m-0","resourceVersion":"7","deletionTimestamp":"2026-11-21T12:00:00Z"}}`
	)
	changedNothing := strings.Replace(logged("operator", 200, made), `{`, `{"requestObject":{"metadata":{"resourceVersion":"7"}},`, 1)
	operator, user := author{"operator", "operator-1"}, author{"user", "user-1"}
	for _, test := range []struct {
		reason  string
		log     string
		deleted bool
		want    author
	}{
		{reason: "the response has the revision", log: logged("operator", 201, made), want: operator},
		{reason: "the response is a deletion that waits for a finalizer", log: logged("operator", 200, held), want: operator},
		{reason: "two users get the revision: its author is unknown", log: logged("operator", 200, made) + logged("user", 200, made)},
		{reason: "an update that changes nothing does not count", log: logged("user", 200, made) + changedNothing, want: user},
		{reason: "the same user gets the revision twice", log: logged("user", 200, made) + logged("user", 200, made), want: user},
		{reason: "the response has another revision", log: logged("user", 200, `{"metadata":{"uid":"m-0","resourceVersion":"6"}}`)},
		{reason: "the request is rejected", log: logged("user", 409, made)},
		{reason: "a delete response has the UID", log: logged("operator", 200, gone), deleted: true, want: operator},
		{reason: "a deletecollection response has the UID", log: logged("user", 200, all), deleted: true, want: user},
		{reason: "an update removes the last finalizer", log: logged("user", 200, made) + logged("operator", 200, released), deleted: true, want: operator},
		{reason: "the last writer has not deleted the object", log: logged("operator", 200, made), deleted: true},
		{reason: "a delete request fails", log: logged("operator", 404, refused), deleted: true},
		{reason: "a line is cut off", log: logged("user", 200, made)[:20] + logged("user", 200, made) + logged("operator", 201, made), want: operator},
		{reason: "a line has no response", log: `{"stage":"ResponseComplete"}` + "\n" + logged("operator", 201, made), want: operator},
	} {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "audit.log")
			if err := os.WriteFile(path, []byte(test.log), 0o600); err != nil {
				t.Fatal(err)
			}
			authors, err := readAuthors(path)
			if err != nil {
				t.Fatal(err)
			}
			r := Revision{Type: watch.Modified, Object: &v1beta1.Switch{ObjectMeta: metav1.ObjectMeta{UID: "m-0", ResourceVersion: "7"}}}
			if test.deleted {
				r.Type = watch.Deleted
				r.Object.SetResourceVersion("8")
			}
			got, err := authors.of(r) // At is zero, so authors.of does not wait for more lines
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(author{})); diff != "" {
				t.Errorf("author (-want +got):\n%s", diff)
			}
		})
	}
}

// TestAuthorsWait writes a line in two parts, and reads the log before each part.
func TestAuthorsWait(t *testing.T) {
	t.Parallel()
	log, err := os.Create(filepath.Join(t.TempDir(), "audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	authors, err := readAuthors(log.Name())
	if err != nil {
		t.Fatal(err)
	}
	line := logged("operator", 201, `{"metadata":{"uid":"m-0","resourceVersion":"7"}}`)
	for _, part := range []string{line[:20], line[20:]} {
		if _, err := authors.read(); err != nil {
			t.Fatal(err)
		}
		if _, err := log.WriteString(part); err != nil {
			t.Fatal(err)
		}
	}
	r := Revision{Type: watch.Added, Object: &v1beta1.Switch{ObjectMeta: metav1.ObjectMeta{UID: "m-0", ResourceVersion: "7"}}, At: time.Now()}
	if got, err := authors.of(r); err != nil || got.process != "operator-1" {
		t.Errorf("got author %v, error %v", got, err)
	}
}
