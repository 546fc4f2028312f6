// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"
)

// validity is the lifetime of certificates. It is longer than any test or demo.
const validity = 365 * 24 * time.Hour

// Authority signs certificates.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

// pair is a certificate and its key, both PEM.
type pair struct{ cert, key []byte }

// ServingCert writes tls.crt and tls.key for a server on 127.0.0.1 or localhost into the folder dir. hosts are
// additional names of the server. It returns the PEM certificate of the authority that signed tls.crt.
func ServingCert(dir string, hosts ...string) (ca []byte, err error) {
	a, err := newAuthority()
	if err != nil {
		return nil, err
	}
	p, err := a.issue(pkix.Name{CommonName: "localhost"}, append(hosts, "localhost", "127.0.0.1")...)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("write a serving certificate: %w", err)
	}
	return a.pem, p.write(dir, "tls")
}

func newAuthority() (*Authority, error) {
	key, _, err := newKey()
	if err != nil {
		return nil, err
	}
	template := newTemplate(pkix.Name{CommonName: "useless-cluster"})
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make an authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make an authority: %w", err)
	}
	return &Authority{cert: cert, key: key, pem: encode("CERTIFICATE", der)}, nil
}

// WriteCert writes a certificate and its key as name.crt and name.key into the folder dir. With hosts it is a server
// certificate, without hosts a client certificate.
func (a *Authority) WriteCert(dir, name string, subject pkix.Name, hosts ...string) error {
	p, err := a.issue(subject, hosts...)
	if err != nil {
		return err
	}
	return p.write(dir, name)
}

// WriteKey writes the authority's own certificate and key as name.crt and name.key, for a program that signs
// certificates.
func (a *Authority) WriteKey(dir, name string) error {
	der, err := x509.MarshalECPrivateKey(a.key)
	if err != nil {
		return fmt.Errorf("write the key of %s: %w", name, err)
	}
	return pair{cert: a.pem, key: encode("EC PRIVATE KEY", der)}.write(dir, name)
}

// issue makes a key and signs a certificate for it. With hosts it is a server certificate, without hosts a client
// certificate.
func (a *Authority) issue(subject pkix.Name, hosts ...string) (pair, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return pair{}, err
	}
	template := newTemplate(subject)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	for _, host := range hosts {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return pair{}, fmt.Errorf("issue a certificate for %s: %w", subject.CommonName, err)
	}
	return pair{cert: encode("CERTIFICATE", der), key: keyPEM}, nil
}

func newTemplate(subject pkix.Name) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		Subject:   subject,
		NotBefore: now.Add(-time.Hour), // valid even if the clock is set back by up to an hour
		NotAfter:  now.Add(validity),
	}
}

func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	return key, encode("EC PRIVATE KEY", der), nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// write writes the pair to name.crt and name.key.
func (p pair) write(dir, name string) error {
	if err := os.WriteFile(filepath.Join(dir, name+".crt"), p.cert, 0o600); err != nil {
		return fmt.Errorf("write the certificate of %s: %w", name, err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".key"), p.key, 0o600); err != nil {
		return fmt.Errorf("write the key of %s: %w", name, err)
	}
	return nil
}
