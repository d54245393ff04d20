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

package elasti

// PathMatchType is how the path of a request is compared.
type PathMatchType string

const (
	// PathMatchExact compares the whole path.
	PathMatchExact PathMatchType = "Exact"
	// PathMatchPrefix compares the path element by element: /a matches /a and
	// /a/b, not /ab.
	PathMatchPrefix PathMatchType = "PathPrefix"
	// PathMatchRegularExpression matches the whole path against an RE2 expression.
	PathMatchRegularExpression PathMatchType = "RegularExpression"
)

// ValueMatchType is how the value of a header or query parameter is compared.
type ValueMatchType string

const (
	// ValueMatchExact compares the whole value.
	ValueMatchExact ValueMatchType = "Exact"
	// ValueMatchRegularExpression matches the whole value against an RE2 expression.
	ValueMatchRegularExpression ValueMatchType = "RegularExpression"
)

// ProbeResponseRule is the response to requests that match all of its matchers.
type ProbeResponseRule struct {
	// path matches the path of the request. Without it every path matches.
	Path *PathMatch
	// headers must all match. At most 16.
	Headers []ValueMatch
	// queryParams must all match. At most 16.
	QueryParams []ValueMatch
	// method is the method of the request. Without it every method matches.
	Method string
	// response is what the client gets.
	Response ProbeResponse
}

// PathMatch matches the path of a request.
type PathMatch struct {
	// type is Exact, PathPrefix or RegularExpression. Defaults to PathPrefix.
	Type PathMatchType
	// value is what the path is compared with. At most 1024 bytes.
	Value string
}

// ValueMatch matches the value of a header or query parameter.
type ValueMatch struct {
	// type is Exact or RegularExpression. Defaults to Exact.
	Type ValueMatchType
	// name is the name of the header (compared without regard to case) or of
	// the query parameter.
	Name string
	// value is what the value is compared with. At most 4096 bytes.
	Value string
}

// ProbeResponse is the response to a request that matched a rule.
type ProbeResponse struct {
	// status is the HTTP status: 200, 204, 400, 401, 403, 404, 500, 502, 503 or 504.
	Status int32
	// body is the body of the response.
	Body string
}
