# Entry points. `make demo` and `make test` do all set-up of a fresh Debian 12 themselves.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# rustup's directory is not on PATH before the next login.
export PATH := $(PATH):$(HOME)/.cargo/bin

CARGO ?= cargo
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
# The one that scripts/setup has installed, if there is none on PATH.
with_nextest = PATH="$$PATH:$(abspath $(TARGET_DIR))/venv-nextest/bin"
NEXTEST = $(with_nextest) $(CARGO) nextest
DEMO_ARGS ?=
SOAK_STREAMS ?= 1000
SOAK_SECONDS ?= 600
FUZZ_SECONDS ?= 60
BENCH_ARGS ?=
PEER_PLUGINS ?=
BENCH_DEMUX_ARGS ?=
BENCH_S3_ARGS ?=
BENCH_MAIN_LOOP_ARGS ?=

# Without PREFIX: for this user only, where GStreamer looks by itself. With PREFIX: the layout that
# the system's GStreamer has below its own prefix. DESTDIR is for packagers.
PREFIX ?=
DESTDIR ?=
plugin_name := libgstthreadbare.so
binary_name := threadbare
ifeq ($(PREFIX),)
BINDIR ?= $(HOME)/.local/bin
PLUGINDIR ?= $(or $(XDG_DATA_HOME),$(HOME)/.local/share)/gstreamer-1.0/plugins
else
BINDIR ?= $(PREFIX)/bin
PLUGINDIR ?= $(shell pkg-config --define-variable=prefix=$(PREFIX) --variable=pluginsdir gstreamer-1.0)
endif

.PHONY: help
help: ## lists the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-19s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@printf '\n  Variables: DEMO_ARGS, PREFIX, BINDIR, PLUGINDIR, DESTDIR, BENCH_RUNS, BENCH_SECS,\n'
	@printf '  BENCH_ARGS, BENCH_DEMUX_ARGS, BENCH_MAIN_LOOP_ARGS, SOAK_STREAMS, SOAK_SECONDS, FUZZ_SECONDS,\n'
	@printf '  EBUR128_LIBDIR, PEER_PLUGINS, CARGO_TARGET_DIR\n'

# With the features that the whole workspace gives its dependencies, so that no later build compiles them again.
.PHONY: demo
demo: setup-demo ## runs 1000 live RTP streams through the gateway, and checks every packet (DEMO_ARGS=...)
	$(CARGO) build --release --workspace --no-default-features --bin $(binary_name)
	$(TARGET_DIR)/release/$(binary_name) demo $(DEMO_ARGS)

# Root, or user namespaces: each has a network of its own.
.PHONY: cluster-demo
cluster-demo: setup-cluster ## runs three gateways that share streams and calls by etcd, kills, freezes and stops them, and prints the gaps
	$(CARGO) build --release -p threadbare
	PROGRAM=$(abspath $(TARGET_DIR))/release/$(binary_name) STREAMS=100 bash tests/cluster.sh kill takeover

.PHONY: test
test: setup-test ## runs everything that CI checks: lint, tests, loom, Miri, tests with real tools
	scripts/test $(tools)

# Programs that users need not build: those that measure, and examples.
tools := --features threadbare-bench/programs,threadbare-example-brokers/programs
# The gateway without GStreamer, with the features that the whole workspace gives its dependencies.
slim := --workspace --no-default-features --features threadbare/cluster

.PHONY: unit
unit: ## runs the tests of all crates, and of the benchmark tools
	$(NEXTEST) run --workspace $(tools)
	$(MAKE) --no-print-directory doc-test slim-test

.PHONY: doc-test
doc-test:
	$(CARGO) test --workspace --doc $(tools)

.PHONY: slim-test
slim-test:
	$(NEXTEST) run $(slim) --bin $(binary_name) --test it -E 'test(without_gstreamer)'

.PHONY: lint
lint: clippy ## checks formatting, and that clippy has no warnings
	$(CARGO) fmt --all --check

.PHONY: clippy
clippy:
	$(CARGO) clippy --workspace --all-targets $(tools) --features threadbare-fuzz/targets -- -D warnings
	$(CARGO) clippy $(slim) --bin $(binary_name) -- -D warnings
	$(CARGO) clippy --workspace --no-default-features --bin $(binary_name) -- -D warnings

.PHONY: check
check: setup-check ## runs formatting, clippy and tests of the crates that differ from SINCE=HEAD, and of those that depend on them
	scripts/check $(tools)

# What neither the tests nor this machine show.
.PHONY: portability
portability: setup-portability ## compiles with the oldest Rust that Cargo.toml names, and for 64-bit ARM
	scripts/portability $(tools)

.PHONY: audit
audit: ## lists known vulnerabilities in dependencies (needs cargo-deny, fetches the advisory database)
	$(CARGO) deny --workspace check advisories

.PHONY: loom
loom: ## checks every interleaving of code that several threads use, in a model checker
	RUSTFLAGS='--cfg loom' $(CARGO) test -p threadbare-runtime -p threadbare-demux -p threadbare-mainloop --release --lib --target-dir $(TARGET_DIR)/loom loom

# What crosses threads and calls no C, in an interpreter that checks each access to memory. setup-test has it installed.
.PHONY: miri
miri: ## checks code that calls no C for undefined behaviour and data races, under Miri (needs a nightly Rust with miri)
	MIRIFLAGS=-Zmiri-disable-isolation $(CARGO) +nightly miri test -p threadbare-runtime --lib --target-dir $(TARGET_DIR)/miri -- ticks join
	MIRIFLAGS=-Zmiri-disable-isolation $(CARGO) +nightly miri test -p threadbare-mainloop --test pure --target-dir $(TARGET_DIR)/miri

# A nightly toolchain with rust-src, as the standard library has to be instrumented, too. Not the test that
# watches the resident memory, which the sanitizer itself takes.
.PHONY: sanitize
sanitize: setup-check ## runs the runtime's tests under ThreadSanitizer (needs a nightly Rust with rust-src)
	@$(CARGO) +nightly --version >/dev/null 2>&1 && \
	    [ -d "$$(rustc +nightly --print sysroot)/lib/rustlib/src/rust/library" ] || { \
	    echo 'sanitize: first: rustup toolchain install nightly --component rust-src'; exit 1; }
	RUSTFLAGS=-Zsanitizer=thread $(with_nextest) $(CARGO) +nightly nextest run -Zbuild-std -p threadbare-runtime --lib --tests \
	    --target "$$(rustc +nightly -vV | sed -n 's/^host: //p')" --target-dir $(TARGET_DIR)/tsan \
	    -E 'not test(leave_no_resources)'

# The corpora in fuzz/corpus replay under `make unit`; this looks for what is not in them yet, and adds nothing to them.
.PHONY: fuzz
fuzz: ## fuzzes the parsers and state machines, FUZZ_SECONDS=60 each (needs a nightly Rust and cargo-fuzz)
	@$(CARGO) +nightly --version >/dev/null 2>&1 || { \
	    echo 'fuzz: first: rustup toolchain install nightly'; exit 1; }
	@$(CARGO) +nightly fuzz --version >/dev/null 2>&1 || { \
	    echo 'fuzz: first: cargo install cargo-fuzz'; exit 1; }
	@for target in $$($(CARGO) +nightly fuzz list); do \
	    echo "== $$target"; \
	    found=$$(mktemp -d); \
	    $(CARGO) +nightly fuzz run --features targets --target-dir $(abspath $(TARGET_DIR))/fuzz "$$target" \
	        "$$found" "fuzz/corpus/$$target" -- -max_total_time=$(FUZZ_SECONDS); \
	    rm -r "$$found"; \
	done

.PHONY: shell-test
shell-test: ## runs the scripts in tests/ with real tools, some at the same time
	scripts/shell-tests

# The tests are fetched, not kept here.
.PHONY: peer-tests
peer-tests: setup-demo ## runs the published tests of the elements that this plugin replaces, with its elements (PEER_PLUGINS=...)
	TARGET_DIR=$(TARGET_DIR) scripts/peer-tests $(PEER_PLUGINS)

.PHONY: bench
bench: setup-bench setup-test ## measures all targets, and prints the tables; the results are in target/bench-results
	scripts/bench --results $(TARGET_DIR)/bench-results $(BENCH_ARGS)

# One run for every figure of README and docs. What it writes is committed with them: a test compares.
.PHONY: bench-readme
bench-readme: setup-bench setup-test ## measures everything into bench/results, then bench-render (20 minutes)
	scripts/bench --results bench/results
	$(MAKE) --no-print-directory bench-render

# The rows are moved to their place when all have been measured. All is built before the first is.
.PHONY: bench-libraries
bench-libraries: setup-demo ## measures demultiplexer and main loop into bench/results, then bench-render (10 minutes)
	$(CARGO) build --profile dist -p threadbare-bench --features programs --bin libraries-head --bin mainloop
	$(CARGO) bench -p threadbare-demux --bench published --no-run
	{ $(TARGET_DIR)/dist/libraries-head; \
	    $(CARGO) bench -q -p threadbare-demux --bench published -- --json $(BENCH_DEMUX_ARGS); \
	    $(TARGET_DIR)/dist/mainloop --json $(BENCH_MAIN_LOOP_ARGS); \
	} >$(TARGET_DIR)/libraries.jsonl
	mv $(TARGET_DIR)/libraries.jsonl bench/results/libraries.jsonl
	$(MAKE) --no-print-directory bench-render

# The same for the media plane.
.PHONY: bench-media
bench-media: setup-demo ## measures the media plane into bench/results, then bench-render (5 minutes)
	$(CARGO) build --profile dist -p gst-plugin-threadbare
	$(CARGO) build --profile dist -p threadbare-bench --features programs --bin media
	GST_PLUGIN_PATH=$(TARGET_DIR)/dist $(TARGET_DIR)/dist/media $(BENCH_MEDIA_ARGS) >$(TARGET_DIR)/media.jsonl
	mv $(TARGET_DIR)/media.jsonl bench/results/media.jsonl
	$(MAKE) --no-print-directory bench-render

.PHONY: bench-radio
bench-radio: setup-demo ## prints the CPU time of HTTP radio streams, compared with stock souphttpsrc (2 minutes)
	$(CARGO) build --profile dist -p gst-plugin-threadbare
	$(CARGO) build --profile dist -p threadbare-bench --features programs --bin radio
	GST_PLUGIN_PATH=$(TARGET_DIR)/dist $(TARGET_DIR)/dist/radio $(BENCH_RADIO_ARGS)

# To the server that the tests start.
.PHONY: bench-s3
bench-s3: setup-test ## prints the memory of recordings to S3 (6 minutes)
	$(CARGO) build --profile dist -p gst-plugin-threadbare
	$(CARGO) build --profile dist -p threadbare-bench --features programs --bin s3
	GST_PLUGIN_PATH=$(TARGET_DIR)/dist $(TARGET_DIR)/dist/s3 --python $(TARGET_DIR)/venv-moto/bin/python $(BENCH_S3_ARGS)

# Calls beside Debian's rtpengine, which it installs.
.PHONY: bench-calls
bench-calls: setup-bench ## measures calls of a SIP proxy, compared with rtpengine, into bench/results, then bench-render (15 minutes)
	$(CARGO) build --profile dist -p threadbare
	$(CARGO) build --profile dist -p threadbare-bench --features programs --bin calls
	$(TARGET_DIR)/dist/calls --threadbare $(TARGET_DIR)/dist/threadbare $(BENCH_CALLS_ARGS) >$(TARGET_DIR)/calls.jsonl
	mv $(TARGET_DIR)/calls.jsonl bench/results/calls.jsonl
	$(MAKE) --no-print-directory bench-render

.PHONY: bench-recordings
bench-recordings: setup-bench ## measures the cost of recording 1000 calls into bench/results, then bench-render (3 minutes)
	$(CARGO) build --profile dist -p threadbare
	$(CARGO) build --profile dist -p threadbare-bench --features programs --bin calls
	$(TARGET_DIR)/dist/calls --threadbare $(TARGET_DIR)/dist/threadbare --relay threadbare --rounds 5 \
	    --only passed1000 --only recorded1000 --only coded1000 $(BENCH_RECORDINGS_ARGS) >$(TARGET_DIR)/recordings.jsonl
	mv $(TARGET_DIR)/recordings.jsonl bench/results/recordings.jsonl
	$(MAKE) --no-print-directory bench-render

.PHONY: bench-render
bench-render: setup-demo ## writes README, docs, plots and drawings from the newest results files
	$(CARGO) run -q -p threadbare-bench --features programs --bin bench-render

.PHONY: soak
soak: setup-demo ## runs 1000 streams for ten minutes, and fails if a packet is lost or memory grows
	$(CARGO) build --release -p threadbare
	scripts/soak $(TARGET_DIR)/release/$(binary_name) $(SOAK_STREAMS) $(SOAK_SECONDS)

.PHONY: doc
doc: setup-demo ## builds the API documentation of all crates
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps

# mdbook as it is on PATH, or one for this tree only.
MDBOOK ?= $(or $(shell command -v mdbook),$(TARGET_DIR)/tools/bin/mdbook)
mdbook_version := 0.5.4

.PHONY: docs
docs: setup-docs ## builds the pages of docs/ as a site in target/book, and checks each link
	@[ -x '$(MDBOOK)' ] || \
	    $(CARGO) install mdbook --locked --version $(mdbook_version) --no-default-features --features search --root $(TARGET_DIR)/tools
	scripts/site '$(MDBOOK)' $(TARGET_DIR)/book

.PHONY: element-docs
element-docs: ## writes the pages of elements in docs/elements from the elements themselves
	THREADBARE_WRITE_ELEMENT_PAGES=1 $(CARGO) test -p gst-plugin-threadbare --test it element_pages::element_pages_match

.PHONY: build
build: setup-demo ## builds the plugin and the program, optimised
	$(CARGO) build --release --workspace

.PHONY: install
install: build ## installs plugin and program for this user, or below PREFIX
	install -Dm755 $(TARGET_DIR)/release/$(plugin_name) '$(DESTDIR)$(PLUGINDIR)/$(plugin_name)'
	install -Dm755 $(TARGET_DIR)/release/$(binary_name) '$(DESTDIR)$(BINDIR)/$(binary_name)'
	@echo 'installed $(DESTDIR)$(PLUGINDIR)/$(plugin_name)'
	@echo 'installed $(DESTDIR)$(BINDIR)/$(binary_name)'
	@case ':$(PATH):' in *':$(BINDIR):'*) ;; *) echo 'note: $(BINDIR) is not on PATH' ;; esac
ifneq ($(PREFIX),)
	@if [ '$(PLUGINDIR)' != "$$(pkg-config --variable=pluginsdir gstreamer-1.0)" ]; then \
	    echo 'note: GStreamer looks there only with GST_PLUGIN_PATH=$(PLUGINDIR)'; \
	fi
endif

.PHONY: uninstall
uninstall: ## removes the files that `make install` with the same variables has installed
	rm -f '$(DESTDIR)$(PLUGINDIR)/$(plugin_name)' '$(DESTDIR)$(BINDIR)/$(binary_name)'

# The loudness library in C's terms, with the names, files and version that programs look for: those of libebur128.
ebur128_prefix := $(or $(PREFIX),/usr/local)
EBUR128_LIBDIR ?= $(ebur128_prefix)/lib
ebur128_include := $(ebur128_prefix)/include
ebur128_version := 1.2.6

.PHONY: build-ebur128
build-ebur128:
	$(CARGO) build --release -p threadbare-loudness-capi

.PHONY: install-ebur128
install-ebur128: build-ebur128 ## installs the drop-in libebur128 below PREFIX (/usr/local unless set)
	install -Dm644 $(TARGET_DIR)/release/libebur128.so '$(DESTDIR)$(EBUR128_LIBDIR)/libebur128.so.$(ebur128_version)'
	ln -sf libebur128.so.$(ebur128_version) '$(DESTDIR)$(EBUR128_LIBDIR)/libebur128.so.1'
	ln -sf libebur128.so.1 '$(DESTDIR)$(EBUR128_LIBDIR)/libebur128.so'
	install -Dm644 $(TARGET_DIR)/release/libebur128.a '$(DESTDIR)$(EBUR128_LIBDIR)/libebur128.a'
	install -Dm644 crates/loudness-capi/include/ebur128.h '$(DESTDIR)$(ebur128_include)/ebur128.h'
	install -d '$(DESTDIR)$(EBUR128_LIBDIR)/pkgconfig'
	sed -e 's|@PREFIX@|$(ebur128_prefix)|' -e 's|@LIBDIR@|$(EBUR128_LIBDIR)|' \
	    -e 's|@INCLUDEDIR@|$(ebur128_include)|' crates/loudness-capi/libebur128.pc.in \
	    >'$(DESTDIR)$(EBUR128_LIBDIR)/pkgconfig/libebur128.pc'
	@echo 'installed $(DESTDIR)$(EBUR128_LIBDIR)/libebur128.so.$(ebur128_version)'

.PHONY: uninstall-ebur128
uninstall-ebur128: ## removes the files that `make install-ebur128` with the same variables has installed
	rm -f '$(DESTDIR)$(EBUR128_LIBDIR)'/libebur128.so{,.1,.$(ebur128_version)} \
	    '$(DESTDIR)$(EBUR128_LIBDIR)/libebur128.a' '$(DESTDIR)$(EBUR128_LIBDIR)/pkgconfig/libebur128.pc' \
	    '$(DESTDIR)$(ebur128_include)/ebur128.h'

.PHONY: build-dist
build-dist: setup-demo
	$(CARGO) build --profile dist -p gst-plugin-threadbare -p threadbare -p threadbare-loudness-capi

.PHONY: deb
deb: setup-deb build-dist ## builds Debian packages of program, plugin and drop-in library, in target/deb
	scripts/deb $(TARGET_DIR)/dist $(TARGET_DIR)/deb

.PHONY: clean
clean: ## removes everything that was built
	$(CARGO) clean
	rm -rf $(TARGET_DIR)/loom $(TARGET_DIR)/fuzz $(TARGET_DIR)/miri

.PHONY: setup-demo setup-check setup-cluster setup-deb setup-docs setup-portability setup-test setup-bench
setup-demo setup-check setup-cluster setup-deb setup-docs setup-portability setup-test setup-bench: setup-%:
	@scripts/setup $*
