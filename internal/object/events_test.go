// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
)

// notes is a recorder that keeps what was last said, and of what type it was.
type notes struct{ eventType, note string }

func (n *notes) Eventf(_, _ runtime.Object, eventType, _, _, note string, args ...any) {
	n.eventType, n.note = eventType, write(note, args)
}

func (n *notes) WithLogger(klog.Logger) events.EventRecorderLogger { return n }

func TestNotesAreShortEnough(t *testing.T) {
	const end = "…"
	for _, c := range []struct {
		reason, text, want string
	}{
		{"a short note is left as it is", "50% of é", "50% of é"},
		{"so is the longest that there may be", strings.Repeat("a", 1024), strings.Repeat("a", 1024)},
		{"a longer one is cut off", strings.Repeat("a", 1025), strings.Repeat("a", 1021) + end},
		{"but not within a letter", strings.Repeat("é", 513), strings.Repeat("é", 510) + end},
	} {
		t.Run(c.reason, func(t *testing.T) {
			told, warned := &notes{}, &notes{}
			(&Events{told}).Tell(&corev1.Pod{}, nil, "Reason", "Act", "%s", c.text)
			(&Events{warned}).Warn(&corev1.Pod{}, "Reason", "Act", "%s", c.text)
			for want, got := range map[string]*notes{corev1.EventTypeNormal: told, corev1.EventTypeWarning: warned} {
				if got.note != c.want || got.eventType != want || !utf8.ValidString(got.note) {
					t.Errorf("%s: %d bytes, %q; want %s, %d bytes, %q", got.eventType, len(got.note), got.note, want, len(c.want), c.want)
				}
			}
		})
	}
}
