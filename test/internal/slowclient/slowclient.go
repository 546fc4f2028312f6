// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package slowclient sends requests that never end to the operator's webhooks.
package slowclient

import (
	"bufio"
	"crypto/tls"
	"io"
	"net/http"
	"testing"
	"time"
)

// Webhook is the path of the webhook that Block blocks.
const Webhook = "/validate-useless-container-training-v1beta1-machine"

// Block sends the headers of large reviews to the webhook server at address (host:port), and never sends the bodies.
// The webhook reads two of them until their time limit of 5 s. The other reviews wait. The webhook must answer some of
// them with 503 when their time limit ends.
func Block(t *testing.T, address string) {
	t.Helper()
	const head = "POST " + Webhook + " HTTP/1.1\r\nHost: webhook\r\n" +
		"Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
	connections := make([]*tls.Conn, 30)
	for i := range connections {
		connection, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer connection.Close()
		if err := connection.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		connections[i] = connection
	}
	for _, connection := range connections {
		if _, err := io.WriteString(connection, head); err != nil {
			t.Fatal(err)
		}
	}
	statuses := map[int]int{}
	for _, connection := range connections {
		response, err := http.ReadResponse(bufio.NewReader(connection), nil)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		statuses[response.StatusCode]++
	}
	if statuses[http.StatusServiceUnavailable] == 0 {
		t.Errorf("number of answers by status: %v, want some with 503", statuses)
	}
}
