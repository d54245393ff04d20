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

package programs

import (
	"fmt"
	"os"
	"path/filepath"
)

// Prometheus is a Prometheus server. For use by one goroutine.
type Prometheus struct {
	Program
	// Address is where it listens, as host and port.
	Address string
}

// NewPrometheus prepares a server that listens on an address of the host. The
// directory is for its data. The scrape configurations are a YAML list; the
// server scrapes every second what they say, and itself as the job prometheus.
func NewPrometheus(path, host, directory, scrapeConfigurations string) (*Prometheus, error) {
	address, err := FreeAddress(host)
	if err != nil {
		return nil, err
	}
	configuration := filepath.Join(directory, "prometheus.yml")
	content := fmt.Sprintf("global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs:\n- job_name: prometheus\n  static_configs:\n  - targets: [%q]\n%s\n", address, scrapeConfigurations)
	if err := os.WriteFile(configuration, []byte(content), 0o600); err != nil {
		return nil, fmt.Errorf("configuring Prometheus: %w", err)
	}
	return &Prometheus{
		Program: Program{Path: path, Directory: directory, Arguments: []string{
			"--config.file=" + configuration, "--storage.tsdb.path=" + filepath.Join(directory, "data"), "--web.listen-address=" + address,
		}},
		Address: address,
	}, nil
}

// Restart kills the server and starts it again, with or without its data.
func (p *Prometheus) Restart(withoutData bool) error {
	p.Kill()
	if withoutData {
		if err := os.RemoveAll(filepath.Join(p.Directory, "data")); err != nil {
			return fmt.Errorf("removing the data of Prometheus: %w", err)
		}
	}
	return p.Start()
}
