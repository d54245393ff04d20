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

package elastiservice

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// maxCallerBytes bounds the name of a client in a status.
const maxCallerBytes = 256

// callerOf returns the name of the client of a request as a status has it: a
// ServiceAccount with its pod, a user, or this server.
func callerOf(ctx context.Context) string {
	info, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return "an unknown client"
	}
	name := info.GetName()
	if name == user.APIServerUser {
		return v1alpha1.CallerServer
	}
	namespace, account, err := serviceaccount.SplitUsername(name)
	if err != nil {
		return shortened(fmt.Sprintf("user %s", name))
	}
	caller := fmt.Sprintf("ServiceAccount %s/%s", namespace, account)
	if pods := info.GetExtra()[serviceaccount.PodNameKey]; len(pods) > 0 {
		caller += ", pod " + pods[0]
	}
	return shortened(caller)
}

func shortened(caller string) string {
	if len(caller) <= maxCallerBytes {
		return caller
	}
	return strings.ToValidUTF8(caller[:maxCallerBytes], "")
}
