/*
Copyright The elasti-apiserver Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package apiserver

import (
	"context"
	"errors"
	"net/http"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/healthz"
)

// knowsAggregator is ready when the certificate authority of the aggregator
// has been read from the cluster. Before, every request that the aggregator
// passes on would be taken for an anonymous one and refused.
func knowsAggregator(authorities dynamiccertificates.CAContentProvider) healthz.HealthChecker {
	return healthz.NamedCheck("aggregator-authority", func(*http.Request) error {
		if _, known := authorities.VerifyOptions(); !known {
			return errors.New("the certificate authority of the aggregator is not known yet")
		}
		return nil
	})
}

// canReadStorage is ready while the storage can be read.
func canReadStorage(check func(ctx context.Context) error) healthz.HealthChecker {
	return healthz.NamedCheck("storage", func(request *http.Request) error { return check(request.Context()) })
}

// addReadinessChecks adds what a server must know before it can answer, and its
// storage, unless the generic server checks that.
func addReadinessChecks(server *genericapiserver.GenericAPIServer, authentication *genericapiserver.AuthenticationInfo, storageCheck func(ctx context.Context) error) error {
	var checks []healthz.HealthChecker
	if storageCheck != nil {
		checks = append(checks, canReadStorage(storageCheck))
	}
	// There is none in a cluster without aggregation.
	if authentication.RequestHeaderConfig != nil {
		checks = append(checks, knowsAggregator(authentication.RequestHeaderConfig.CAContentProvider))
	}
	return server.AddReadyzChecks(checks...)
}
