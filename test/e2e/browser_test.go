//go:build more

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

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

// TestWaitingPageOpensTheApplicationInARealBrowser opens a sleeping application in
// Chromium, without any further input.
func TestWaitingPageOpensTheApplicationInARealBrowser(t *testing.T) {
	for _, test := range []struct {
		name    string
		scripts bool
	}{
		{"WithScripts", true},
		{"WithoutScripts", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			app := s.asleep(cluster.ApplicationOptions{
				// Chromium takes some seconds on a busy machine.
				Arguments: []string{"-start-delay=15s"},
				Spec: func(spec *v1alpha1.ElastiServiceSpec) {
					spec.Proxy = &v1alpha1.ProxySpec{WaitingPage: true}
				},
			})
			page := s.openBrowser(app.Address)
			if !test.scripts {
				s.check(page.call("Emulation.setScriptExecutionDisabled", map[string]any{"value": true}, nil))
			}
			url := app.URL("/shop?item=1")
			s.check(page.call("Page.navigate", map[string]any{"url": url}, nil))
			var shown []document
			err := wait.PollUntilContextTimeout(s.ctx, pollInterval, time.Minute, true, func(context.Context) (bool, error) {
				now, err := page.document()
				if err != nil {
					// The page is between two documents.
					return false, nil
				}
				if now.Complete && now.Location == url && (len(shown) == 0 || shown[len(shown)-1] != now) {
					shown = append(shown, now)
				}
				return len(shown) > 0 && strings.HasPrefix(now.Text, "hello from "+app.Name+"-"), nil
			})
			if err != nil {
				t.Fatalf("the browser does not come to the application: %v; it showed %+v", err, shown)
			}
			first, last := shown[0], shown[len(shown)-1]
			if first.Title != "Starting…" || !strings.Contains(first.Text, "This application was asleep and is starting") || first.Step == "" {
				t.Errorf("the browser showed %+v first, not the waiting page", first)
			}
			if !strings.Contains(last.Text, "you requested /shop") {
				t.Errorf("the application says %q", last.Text)
			}
			steps := map[string]bool{}
			for _, one := range shown[:len(shown)-1] {
				steps[one.Step] = true
			}
			if test.scripts && len(steps) < 2 {
				t.Errorf("the page showed no progress, only %v", steps)
			}
		})
	}
}

// document is the document in a browser.
type document struct {
	Location, Title, Text string
	// Complete is true when the document has been loaded.
	Complete bool
	// Step is the current step of the waiting page.
	Step string
}

// documentExpression returns a document as JSON.
const documentExpression = `JSON.stringify({
	Location: location.href,
	Complete: document.readyState === "complete",
	Title: document.title,
	Text: document.body.innerText,
	Step: Array.from(document.querySelectorAll("li.now"), item => item.id).join(),
})`

// page is a page of a browser, controlled with Chromium's debugging protocol. It is not
// safe for concurrent use.
type page struct {
	conn *websocket.Conn
	last int
}

// openBrowser starts a Chromium that ends with the test and connects to one address only,
// and returns its empty page.
func (s *scene) openBrowser(address string) *page {
	s.Helper()
	profile := s.TempDir()
	command := exec.CommandContext(s.ctx, "chromium", "--headless", "--remote-debugging-port=0", "--user-data-dir="+profile,
		// The tests run as root, and the only pages are those of the test.
		"--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
		"--no-proxy-server", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
		"--disable-default-apps", "--disable-extensions", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE "+address, "about:blank")
	// A pipe would stay open in its child processes.
	log, err := os.Create(filepath.Join(s.TempDir(), "chromium.log"))
	s.check(err)
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	s.check(command.Start())
	s.Cleanup(func() {
		s.endGroup(command)
		if s.Failed() {
			output, err := os.ReadFile(log.Name())
			s.Logf("Chromium printed %s (%v)", output, err)
		}
		log.Close()
	})
	var opened *page
	var last error
	err = wait.PollUntilContextTimeout(s.ctx, pollInterval, time.Minute, true, func(ctx context.Context) (bool, error) {
		opened, last = findPage(ctx, profile)
		return last == nil, nil
	})
	if err != nil {
		s.Fatalf("waiting for the page of Chromium: %v: %v", err, last)
	}
	s.Cleanup(func() { opened.conn.Close() })
	return opened
}

// endGroup ends a process and its children, which would otherwise still write to its files.
func (s *scene) endGroup(command *exec.Cmd) {
	s.Helper()
	// An error means that they have ended already.
	_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
	_ = command.Wait()
	err := wait.PollUntilContextTimeout(context.WithoutCancel(s.ctx), pollInterval, cleanUpTimeout, true, func(context.Context) (bool, error) {
		return errors.Is(syscall.Kill(-command.Process.Pid, 0), syscall.ESRCH), nil
	})
	if err != nil {
		s.Errorf("processes that %s started go on: %v", command.Path, err)
	}
}

// findPage connects to the page of the browser with this profile.
func findPage(ctx context.Context, profile string) (*page, error) {
	where, err := os.ReadFile(filepath.Join(profile, "DevToolsActivePort"))
	if err != nil {
		return nil, err
	}
	port, _, _ := strings.Cut(string(where), "\n")
	got, err := cluster.Get(ctx, "http://127.0.0.1:"+port+"/json/list")
	if err != nil {
		return nil, err
	}
	var targets []struct {
		Type                 string
		WebSocketDebuggerURL string `json:"webSocketDebuggerUrl"`
	}
	if err := json.Unmarshal([]byte(got.Body), &targets); err != nil {
		return nil, fmt.Errorf("reading the list of pages: %w", err)
	}
	for _, target := range targets {
		if target.Type != "page" {
			continue
		}
		conn, response, err := websocket.DefaultDialer.DialContext(ctx, target.WebSocketDebuggerURL, http.Header{})
		if err != nil {
			return nil, err
		}
		response.Body.Close()
		return &page{conn: conn}, nil
	}
	return nil, errors.New("there is no page")
}

// call calls a method and waits for its result, which goes to result unless
// that is nil.
func (p *page) call(method string, params, result any) error {
	p.last++
	if err := p.conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	if err := p.conn.WriteJSON(map[string]any{"id": p.last, "method": method, "params": params}); err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	for {
		var message struct {
			ID     int
			Result json.RawMessage
			Error  *struct{ Message string }
		}
		if err := p.conn.ReadJSON(&message); err != nil {
			return fmt.Errorf("%s: %w", method, err)
		}
		switch {
		case message.ID != p.last:
			// An event, or the response to a command whose result is not needed.
		case message.Error != nil:
			return fmt.Errorf("%s: %s", method, message.Error.Message)
		case result == nil:
			return nil
		default:
			return json.Unmarshal(message.Result, result)
		}
	}
}

// document returns the document of the page.
func (p *page) document() (document, error) {
	var evaluated struct {
		Result           struct{ Value string }
		ExceptionDetails *struct{ Text string }
	}
	if err := p.call("Runtime.evaluate", map[string]any{"expression": documentExpression}, &evaluated); err != nil {
		return document{}, err
	}
	if evaluated.ExceptionDetails != nil {
		return document{}, errors.New(evaluated.ExceptionDetails.Text)
	}
	var shown document
	err := json.Unmarshal([]byte(evaluated.Result.Value), &shown)
	return shown, err
}
