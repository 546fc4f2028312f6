// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package informer

import (
	"context"
	"fmt"
	"io"
	"reflect"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// NewCache is cache.New with other informers. API servers send custom resources only as JSON. When an informer of
// client-go starts, it receives each object in an event of a watch. It decodes it twice: the event, and then the object
// in it. The informers of NewCache begin with a list instead. They decode and trim its objects one by one while the
// list arrives, with a faster JSON library. So an operator with many objects starts faster, and needs no memory for the
// whole list. Kinds with a binary format have the informers of New.
func NewCache(config *rest.Config, options cache.Options) (cache.Cache, error) {
	options.NewInformer = func(
		lw toolscache.ListerWatcher, object runtime.Object, resync time.Duration, indexers toolscache.Indexers,
	) toolscache.SharedIndexInformer {
		if !streams(object, options) {
			return New(lw, object, resync, indexers)
		}
		transform := optionsOf(object, options).Transform
		if transform == nil {
			transform = options.DefaultTransform
		}
		s := &stream{config, options, object, transform}
		return toolscache.NewSharedIndexInformer(listing{&toolscache.ListWatch{
			ListWithContextFunc:  s.list,
			WatchFuncWithContext: toolscache.ToListerWatcherWithContext(lw).WatchWithContext,
		}}, object, resync, indexers)
	}
	return cache.New(config, options)
}

// optionsOf returns the options of the cache for the kind of an object.
func optionsOf(object runtime.Object, options cache.Options) cache.ByObject {
	for configured, byObject := range options.ByObject {
		if reflect.TypeOf(configured) == reflect.TypeOf(object) {
			return byObject
		}
	}
	return cache.ByObject{}
}

// streams reports whether NewCache streams the list of a kind. The kind has a Go type and no binary format, and the
// cache has all its objects.
func streams(object runtime.Object, options cache.Options) bool {
	_, binary := object.(interface{ Unmarshal([]byte) error })
	_, dynamic := object.(runtime.Unstructured)
	selected := optionsOf(object, options)
	return !binary && !dynamic &&
		selected.Label == nil && selected.Field == nil && selected.Namespaces == nil &&
		options.DefaultLabelSelector == nil && options.DefaultFieldSelector == nil && options.DefaultNamespaces == nil
}

// listing is a ListWatch whose informer begins with a list, even if the API server could send all objects in a watch.
type listing struct{ *toolscache.ListWatch }

func (listing) IsWatchListSemanticsUnSupported() bool { return true }

// stream lists the objects of one kind.
type stream struct {
	config    *rest.Config
	options   cache.Options
	object    runtime.Object // of the kind
	transform toolscache.TransformFunc
}

// pageSize is the number of objects in a page. API servers before Kubernetes 1.33 keep a whole page in memory.
const pageSize = 5_000

// list returns a page of a consistent list. The pager of client-go sets the limit to 500, and a small page costs time.
// If a later page has expired, the pager requests the whole list, without a limit.
func (s *stream) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	options.ResourceVersion, options.ResourceVersionMatch = "", ""
	if options.Limit > 0 {
		options.Limit = pageSize
	}
	gvk, err := apiutil.GVKForObject(s.object, s.options.Scheme)
	if err != nil {
		return nil, err
	}
	mapping, err := s.options.Mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, err
	}
	codecs := serializer.NewCodecFactory(s.options.Scheme)
	api, err := apiutil.RESTClientForGVK(gvk, true, false, s.config, codecs, s.options.HTTPClient)
	if err != nil {
		return nil, err
	}
	request := api.Get().Resource(mapping.Resource.Resource)
	request.VersionedParams(&options, runtime.NewParameterCodec(s.options.Scheme))
	request.SetHeader("Accept-Encoding", "identity") // compression needs more time than it saves
	body, err := request.Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	list, err := s.decode(body)
	if err != nil {
		return nil, fmt.Errorf("decode the list of %s: %w", mapping.Resource.Resource, err)
	}
	return list, nil
}

// decode reads a list and trims each object with the transform function of the cache.
func (s *stream) decode(in io.Reader) (*metav1.List, error) {
	var answer struct {
		Metadata metav1.ListMeta `json:"metadata"`
		Items    items           `json:"items"`
	}
	answer.Items.stream = s
	err := json.UnmarshalRead(in, &answer, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	return &metav1.List{ListMeta: answer.Metadata, Items: answer.Items.objects}, err
}

// items are the objects of a list.
type items struct {
	stream  *stream
	objects []runtime.RawExtension
}

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (i *items) UnmarshalJSONFrom(in *jsontext.Decoder) error {
	if start, err := in.ReadToken(); err != nil || start.Kind() != '[' {
		return err // null is an empty list
	}
	for in.PeekKind() != ']' {
		object := reflect.New(reflect.TypeOf(i.stream.object).Elem()).Interface().(client.Object)
		if err := json.UnmarshalDecode(in, object); err != nil {
			return err
		}
		trimmed, err := i.stream.transform(object)
		if err != nil {
			return err
		}
		i.objects = append(i.objects, runtime.RawExtension{Object: trimmed.(runtime.Object)})
	}
	_, err := in.ReadToken()
	return err
}
