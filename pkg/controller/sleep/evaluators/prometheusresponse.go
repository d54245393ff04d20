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

package evaluators

import (
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/queries"
)

// Types of results.
const (
	resultScalar = "scalar"
	resultVector = "vector"
)

// infoPrefix begins what a server remarks on a query. Prometheus before 3.0,
// and Thanos, put that among the warnings.
const infoPrefix = "PromQL info: "

// infos are what servers remark, as it begins, with what is shown of it.
var infos = []struct{ begins, shown string }{
	{"metric might not be a counter", "a metric might not be a counter"},
	{"input to histogram_quantile needed to be fixed", "the buckets of a histogram are not monotonic"},
	{"ignored histogram", "histograms were ignored"},
	{"incompatible sample types", "samples of different types were combined"},
}

// response is what a Prometheus server responds with.
type response struct {
	Status    string   `json:"status"`
	ErrorType string   `json:"errorType"`
	Warnings  []string `json:"warnings"`
	Infos     []string `json:"infos"`
	Data      struct {
		ResultType string          `json:"resultType"`
		Result     json.RawMessage `json:"result"`
	} `json:"data"`
}

// element is an element of an instant vector.
type element struct {
	Value     sample          `json:"value"`
	Histogram json.RawMessage `json:"histogram"`
}

// sample is a time and a value.
type sample float64

// UnmarshalJSON decodes a pair of a time and a value in quotes.
func (s *sample) UnmarshalJSON(encoded []byte) error {
	var pair []json.RawMessage
	if err := json.Unmarshal(encoded, &pair); err != nil {
		return err
	}
	if len(pair) != 2 {
		return errors.New("a sample is a time and a value")
	}
	var text string
	if err := json.Unmarshal(pair[1], &text); err != nil {
		return err
	}
	value, err := strconv.ParseFloat(text, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return err
	}
	*s = sample(value)
	return nil
}

// errorTypeOf returns which type of error a response is, and nothing when it is
// not one of Prometheus.
func errorTypeOf(body []byte) string {
	var read response
	if err := json.Unmarshal(body, &read); err != nil {
		return ""
	}
	return read.ErrorType
}

// readResponse returns the one number of a response.
func readResponse(name string, body []byte) (queries.Result, error) {
	var read response
	if err := json.Unmarshal(body, &read); err != nil || read.Status != "success" {
		return queries.Result{}, serverFault("%s does not respond as Prometheus does: is the serverAddress right?", name)
	}
	note, complete := noteOf(&read)
	if !complete {
		// A server that queries others has a warning when one of them is missing.
		return queries.Result{}, failure(v1alpha1.ReasonDataIncomplete, "%s: the response has warnings, so data may be missing: run the query in the server's own interface to see them", name)
	}
	value, err := singleValue(name, &read)
	if err != nil {
		return queries.Result{}, err
	}
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return queries.Result{}, failure(v1alpha1.ReasonNotANumber, "%s: the query's result is %v: does it divide by zero?", name, value)
	}
	return queries.Result{Value: value, Note: note}, nil
}

// singleValue returns the value of a result that has one.
func singleValue(name string, read *response) (float64, error) {
	switch read.Data.ResultType {
	case resultScalar:
		var scalar sample
		if err := json.Unmarshal(read.Data.Result, &scalar); err != nil {
			return 0, notUnderstood(name)
		}
		return float64(scalar), nil
	case resultVector:
		var elements []element
		if err := json.Unmarshal(read.Data.Result, &elements); err != nil {
			return 0, notUnderstood(name)
		}
		return singleElement(name, elements)
	default:
		return 0, failure(v1alpha1.ReasonNotANumber, "%s: the query's result is neither an instant vector nor a scalar: use a query for an instant vector with one element, or a scalar", name)
	}
}

func singleElement(name string, elements []element) (float64, error) {
	switch {
	case len(elements) == 0:
		return 0, failure(v1alpha1.ReasonNoData, "%s: the query has no result: does what it selects exist?", name)
	case len(elements) > 1:
		return 0, failure(v1alpha1.ReasonSeveralElements, "%s: the query has several results: wrap it into sum(…) or max(…)", name)
	case len(elements[0].Histogram) > 0:
		return 0, failure(v1alpha1.ReasonNotANumber, "%s: the query's result is a histogram: take a number of it, such as with histogram_count(…)", name)
	default:
		return float64(elements[0].Value), nil
	}
}

func notUnderstood(name string) error {
	return failure(v1alpha1.ReasonNotANumber, "%s: the response cannot be read: use a query for an instant vector with one element, or a scalar", name)
}

// noteOf returns what is shown of the remarks of a server on a query, and whether the
// data is complete.
func noteOf(read *response) (note string, complete bool) {
	for _, warning := range read.Warnings {
		info, ok := strings.CutPrefix(warning, infoPrefix)
		if !ok {
			return "", false
		}
		if note == "" {
			note = shownInfo(info)
		}
	}
	if note == "" && len(read.Infos) > 0 {
		note = shownInfo(strings.TrimPrefix(read.Infos[0], infoPrefix))
	}
	return note, true
}

// shownInfo returns what is shown of a remark. Its text is not shown, as it could be
// anything.
func shownInfo(info string) string {
	for _, known := range infos {
		if strings.HasPrefix(info, known.begins) {
			return infoPrefix + known.shown
		}
	}
	return infoPrefix + "run the query in the server's own interface to see it"
}
