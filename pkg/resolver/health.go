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

package resolver

import (
	"fmt"
	"net/http"

	"github.com/truefoundry/elasti-apiserver/pkg/portcheck"
)

// healthMux responds to the probes of the kubelet: /healthz while the process runs,
// /readyz while new traffic should come to it; and the controller, which proxy ports
// are served.
func healthMux(ready func() error, state func(*portcheck.Query, portcheck.Port) portcheck.State) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET "+portcheck.Path, portcheck.Handler(state))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}
