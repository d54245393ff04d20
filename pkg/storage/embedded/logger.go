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

package embedded

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
)

// newZapLogger returns a logger for etcd whose warnings and errors go to
// logger while serving is true. Everything else needs verbosity 4: what etcd
// says at lower levels is about clusters and listeners that do not exist here,
// a start that fails has its reason in the error of Start, and what ends on
// purpose is no error.
//
// A panic or fatal entry, with which etcd would end the whole process, goes to
// fatal instead and ends the goroutine that wrote it.
func newZapLogger(logger klog.Logger, serving *atomic.Bool, fatal chan<- error) *zap.Logger {
	report := reportFatal{fatal}
	return zap.New(&klogCore{logger: klog.LoggerWithName(logger, "etcd"), serving: serving}, zap.WithFatalHook(report), zap.WithPanicHook(report))
}

// reportFatal sends the first entry it sees to a channel that has room for one.
type reportFatal struct {
	fatal chan<- error
}

func (r reportFatal) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	select {
	case r.fatal <- errors.New(describe(entry.Entry, fields)):
	default:
	}
	runtime.Goexit()
}

// klogCore writes zap entries to klog.
type klogCore struct {
	logger  klog.Logger
	serving *atomic.Bool
	fields  []zapcore.Field
}

var _ zapcore.Core = &klogCore{}

const quietVerbosity = 4

// Enabled reports whether an entry of this level is written.
func (c *klogCore) Enabled(level zapcore.Level) bool {
	return level >= zapcore.WarnLevel && c.serving.Load() || c.logger.V(quietVerbosity).Enabled()
}

// With returns a core that adds fields to each entry.
func (c *klogCore) With(fields []zapcore.Field) zapcore.Core {
	return &klogCore{logger: c.logger, serving: c.serving, fields: append(c.fields[:len(c.fields):len(c.fields)], fields...)}
}

// Check adds the core to an entry that it is going to write.
func (c *klogCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

// Write writes an entry. Panics and fatal errors are reported by reportFatal.
func (c *klogCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	keysAndValues := keysAndValues(append(c.fields[:len(c.fields):len(c.fields)], fields...))
	switch {
	case entry.Level >= zapcore.DPanicLevel:
	case !c.serving.Load():
		c.logger.V(quietVerbosity).Info(entry.Message, append(keysAndValues, "severity", entry.Level.String())...)
	case entry.Level >= zapcore.ErrorLevel:
		c.logger.Error(nil, entry.Message, keysAndValues...)
	case entry.Level == zapcore.WarnLevel:
		c.logger.Info(entry.Message, append(keysAndValues, "severity", "warning")...)
	default:
		c.logger.V(quietVerbosity).Info(entry.Message, keysAndValues...)
	}
	return nil
}

// Sync does nothing: klog flushes on its own.
func (c *klogCore) Sync() error { return nil }

func keysAndValues(fields []zapcore.Field) []any {
	encoder := zapcore.NewMapObjectEncoder()
	for _, field := range fields {
		field.AddTo(encoder)
	}
	pairs := make([]any, 0, 2*len(fields))
	for _, field := range fields {
		if value, ok := encoder.Fields[field.Key]; ok {
			pairs = append(pairs, field.Key, value)
		}
	}
	return pairs
}

// describe renders an entry as one line.
func describe(entry zapcore.Entry, fields []zapcore.Field) string {
	line := entry.Message
	pairs := keysAndValues(fields)
	for i := 0; i+1 < len(pairs); i += 2 {
		line += fmt.Sprintf(" %v=%v", pairs[i], pairs[i+1])
	}
	return line
}
