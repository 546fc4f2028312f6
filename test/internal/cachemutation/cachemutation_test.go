// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package cachemutation_test // in package cachemutation, the test's imports would initialize client-go first

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	_ "container.training/useless/test/internal/cachemutation"
)

// mutateVariable is the environment variable that makes this test mutate a cache.
const mutateVariable = "USELESS_MUTATE_A_CACHE"

func TestMutationEndsTheProgram(t *testing.T) {
	if os.Getenv(mutateVariable) != "" {
		mutate(t)
		return
	}
	command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=30s")
	command.Env = append(os.Environ(), mutateVariable+"=1", "KUBE_CACHE_MUTATION_DETECTOR=false")
	out, err := command.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "panic: cache *v1.ConfigMap modified") {
		t.Errorf("got error %v, want a panic of the mutation detector:\n%s", err, out)
	}
}

// mutate changes an object in a cache. Then it waits until the detector ends the program.
func mutate(t *testing.T) {
	t.Helper()
	list := &corev1.ConfigMapList{Items: []corev1.ConfigMap{{ObjectMeta: metav1.ObjectMeta{Name: "cached"}}}}
	informer := cache.NewSharedInformer(still{list}, &corev1.ConfigMap{}, 0)
	go informer.RunWithContext(t.Context())
	if !cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced) {
		t.Fatal("the cache did not fill")
	}
	informer.GetStore().List()[0].(*corev1.ConfigMap).Data = map[string]string{"changed": "true"}
	select {
	case <-t.Context().Done():
	case <-time.After(20 * time.Second):
	}
}

// still implements cache.ListerWatcher for objects that never change.
type still struct{ list runtime.Object }

func (s still) List(metav1.ListOptions) (runtime.Object, error)   { return s.list, nil }
func (s still) Watch(metav1.ListOptions) (watch.Interface, error) { return watch.NewFake(), nil }
func (s still) IsWatchListSemanticsUnSupported() bool             { return true }
