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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// pageSize is the number of objects in a page. API servers before Kubernetes 1.33 encode a whole page in memory. If the
// objects are stored in another version, an API server may need some milliseconds for each object, and has a minute for
// a page.
const pageSize = 1_000

// NewCache is cache.New with other informers for custom resources. The options must have a scheme, a REST mapper and an
// HTTP client, as a manager sets them. The transform functions are called twice for an object.
//
// API servers send custom resources as JSON. When an informer of client-go starts, it receives each object in an event
// of a watch. The informer decodes the event, and then the object in it. The informers of NewCache begin with a list
// instead. They decode and trim its objects one by one while the list arrives, with a faster JSON library. So an
// operator with many objects starts faster, and needs no memory for the encoded list. All other informers are those of
// New.
func NewCache(config *rest.Config, options cache.Options) (cache.Cache, error) {
	options.NewInformer = func(
		lw toolscache.ListerWatcher, object runtime.Object, resync time.Duration, indexers toolscache.Indexers,
	) toolscache.SharedIndexInformer {
		kind, transform, ok := streamed(object, options)
		if !ok {
			return New(lw, object, resync, indexers)
		}
		s := &stream{config, options, kind, reflect.TypeOf(object).Elem(), transform}
		return toolscache.NewSharedIndexInformer(listing{&toolscache.ListWatch{
			ListWithContextFunc:  s.list,
			WatchFuncWithContext: toolscache.ToListerWatcherWithContext(lw).WatchWithContext,
		}}, object, resync, indexers)
	}
	return cache.New(config, options)
}

// streamed returns the kind of an object, and the transform function of the cache for this kind. It returns false if
// the list of the kind is not streamed. This is so if the kind has no Go type or has a binary format, or if the cache
// has only some of the objects.
func streamed(object runtime.Object, options cache.Options) (
	kind schema.GroupVersionKind, transform toolscache.TransformFunc, ok bool,
) {
	kind, err := apiutil.GVKForObject(object, options.Scheme)
	if err != nil {
		return kind, nil, false
	}
	selected := options.DefaultLabelSelector != nil || options.DefaultFieldSelector != nil ||
		options.DefaultNamespaces != nil
	transform = options.DefaultTransform
	for configured, byObject := range options.ByObject {
		if other, err := apiutil.GVKForObject(configured, options.Scheme); err == nil && other == kind {
			selected = selected || byObject.Label != nil || byObject.Field != nil || byObject.Namespaces != nil
			if byObject.Transform != nil {
				transform = byObject.Transform
			}
		}
	}
	return kind, transform, isCustom(object) && !selected
}

// isCustom reports whether an object has a Go type without the binary format of Kubernetes.
func isCustom(object runtime.Object) bool {
	_, binary := object.(interface{ Unmarshal([]byte) error })
	_, dynamic := object.(runtime.Unstructured)
	return !binary && !dynamic
}

// listing is a ListWatch whose informer begins with a list, even if the API server could send all objects in a watch.
type listing struct{ *toolscache.ListWatch }

func (listing) IsWatchListSemanticsUnSupported() bool { return true }

// stream lists the objects of one kind.
type stream struct {
	config    *rest.Config
	options   cache.Options
	kind      schema.GroupVersionKind
	goType    reflect.Type
	transform toolscache.TransformFunc // may be nil
}

// list returns a consistent list of all objects. It requests pages, even if client-go sets no limit. If a page has
// expired, client-go calls list again.
func (s *stream) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	mapping, err := s.options.Mapper.RESTMapping(s.kind.GroupKind(), s.kind.Version)
	if err != nil {
		return nil, err
	}
	codecs := serializer.NewCodecFactory(s.options.Scheme)
	api, err := apiutil.RESTClientForGVK(s.kind, true, false, s.config, codecs, s.options.HTTPClient)
	if err != nil {
		return nil, err
	}
	parameters := runtime.NewParameterCodec(s.options.Scheme)
	options.Limit, options.ResourceVersion, options.ResourceVersionMatch = pageSize, "", ""
	for all := (&metav1.List{}); ; {
		request := api.Get().Resource(mapping.Resource.Resource).VersionedParams(&options, parameters)
		page, err := s.page(ctx, request)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", mapping.Resource.Resource, err)
		}
		all.Items = append(all.Items, page.Items...)
		if options.Continue = page.Continue; options.Continue == "" {
			all.ResourceVersion = page.ResourceVersion
			log.FromContext(ctx).V(1).Info("Listed all objects", "kind", s.kind.Kind, "count", len(all.Items))
			return all, nil
		}
	}
}

// page reads one page.
func (s *stream) page(ctx context.Context, request *rest.Request) (*metav1.List, error) {
	request.SetHeader("Accept", runtime.ContentTypeJSON)
	request.SetHeader("Accept-Encoding", "identity") // compression needs more time than it saves
	body, err := request.Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return s.decode(body)
}

// decode reads a list and transforms each object.
func (s *stream) decode(in io.Reader) (*metav1.List, error) {
	var answer struct {
		Kind     string          `json:"kind"`
		Metadata metav1.ListMeta `json:"metadata"`
		Items    items           `json:"items"`
	}
	answer.Items.stream = s
	err := json.UnmarshalRead(in, &answer, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if want := s.kind.Kind + "List"; err == nil && (answer.Kind != want || answer.Metadata.ResourceVersion == "") {
		err = fmt.Errorf("got the kind %q and the resourceVersion %q, want the kind %s and a resourceVersion",
			answer.Kind, answer.Metadata.ResourceVersion, want)
	}
	return &metav1.List{ListMeta: answer.Metadata, Items: answer.Items.objects}, err
}

// items are the objects of a list.
type items struct {
	stream  *stream
	objects []runtime.RawExtension
}

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (i *items) UnmarshalJSONFrom(in *jsontext.Decoder) error {
	switch start, err := in.ReadToken(); {
	case err != nil:
		return err
	case start.Kind() == 'n': // null is an empty list
		return nil
	case start.Kind() != '[':
		return fmt.Errorf("items is %s, want a list", start)
	}
	for in.PeekKind() != ']' {
		var object any = reflect.New(i.stream.goType).Interface().(client.Object)
		err := json.UnmarshalDecode(in, object)
		if err == nil && i.stream.transform != nil {
			object, err = i.stream.transform(object)
		}
		if err != nil {
			return err
		}
		i.objects = append(i.objects, runtime.RawExtension{Object: object.(runtime.Object)})
	}
	_, err := in.ReadToken()
	return err
}
