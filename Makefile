# What you do with offtop's source. `make` alone lists the targets.
SHELL := /bin/bash
PREFIX ?= /usr/local
DESTDIR ?=
ARGS ?=
# How long each part of `make soak` runs; the first part runs longer if that leaves fewer than 5 minutes to warm up.
SECONDS ?= 3600
# What `make dist` builds besides the wheel.
KINDS ?= pyz $(if $(shell command -v dpkg-deb),deb) $(if $(shell command -v rpmbuild),rpm)
# SYSTEM=ready means that the system packages are installed; nothing is checked then.
SYSTEM ?=

bin := .venv/bin
other_tests := -m 'not kernel and not variant and not incident and not consumer and not fault and not soak and not losses and not exits and not guest and not fleet'
epoch = $(or $(shell git log -1 --format=%ct 2>/dev/null),$(shell stat -c %Y CHANGELOG.md))
as_root := $(if $(filter 0,$(shell id -u)),,sudo)
# Otherwise the programs that the tests start would inherit make's own variables.
unexport MAKEFLAGS MFLAGS MAKELEVEL
# The tests start offtop often, and without .pyc files a third of each start is spent on compiling Python.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup setup-dist setup-test setup-bench run test docs dist lock image release packages bench variants flaky examples incidents consumers exits fleet kernels bccs faults losses soak format install uninstall \
    clean

help:
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

setup: ## install the system packages that offtop needs, and make .venv
	@$(if $(SYSTEM),:,packaging/system.sh run)
	@packaging/venv.sh

setup-dist:
	@$(if $(SYSTEM),:,packaging/system.sh dist)
	@packaging/venv.sh dist

setup-test: ## do the same, and install what the tests need
	@$(if $(SYSTEM),:,packaging/system.sh run test)
	@packaging/venv.sh dev

setup-bench: setup-test ## do the same, and install the tools that offtop is compared with
	@$(if $(SYSTEM),:,packaging/system.sh bench incident)

# Status 3 and 4 mean that offtop can use neither BPF nor /proc here, and has printed why.
run: setup ## run this checkout live, or show a recording if it cannot; ARGS='-p 4242' passes options
	@$(as_root) $(bin)/offtop $(ARGS) || { \
	    status=$$?; [ $$status = 3 ] || [ $$status = 4 ] || exit $$status; \
	    echo 'In 5 s you see a recording from another machine instead: offtop demo' >&2; sleep 5; \
	    $(bin)/offtop demo; }

# Each check runs even if another one fails. pyright runs beside the quick checks and the first tests; its output is
# printed after theirs. The kernel tests come last, because they need the CPUs for themselves. One process imports all
# tests before the others do, so that in a fresh clone not each of them compiles all the Python.
test: setup-test ## run all checks: format, lint, types, imports between packages, tests
	@failed=(); \
	check() { echo "== $$*"; "$$@" || failed+=("$$*"); }; \
	types=$$(mktemp); $(bin)/pyright >"$$types" 2>&1 & typing=$$!; \
	$(bin)/pytest --collect-only -qq $(other_tests) >/dev/null 2>&1 & compiling=$$!; \
	trap 'kill $$typing $$compiling 2>/dev/null; rm -f "$$types"' EXIT; \
	typed() { wait $$typing; local status=$$?; cat "$$types"; return $$status; }; \
	check $(bin)/ruff format --check; \
	check $(bin)/ruff check; \
	check $(bin)/clang-format --dry-run --Werror bpf/*.[ch]; \
	check $(bin)/lint-imports --no-cache; \
	wait $$compiling; \
	check tests/run.sh $(bin)/pytest $(other_tests) -n 4 --dist worksteal $(ARGS); \
	echo '== $(bin)/pyright'; typed || failed+=($(bin)/pyright); \
	check $(if $(as_root),sudo env OFFTOP_REQUIRE_KERNEL=$$OFFTOP_REQUIRE_KERNEL PYTHONDONTWRITEBYTECODE=1 \
	    HYPOTHESIS_STORAGE_DIRECTORY=/tmp/offtop-hypothesis) \
	    tests/run.sh $(bin)/pytest -m "kernel and not variant" -n 3 --dist loadfile \
	    $(or $(ARGS),tests/kernel tests/cli); \
	if [ $${#failed[@]} -gt 0 ]; then printf 'FAILED: %s\n' "$${failed[@]}"; exit 1; fi

variants: setup-test ## run the tests that `make test` leaves out: slow ones, other programs, probes, screens
	@$(as_root) env PYTHONDONTWRITEBYTECODE=1 $(bin)/pytest -p no:cacheprovider -m variant $(ARGS)

# All of them take less than half a day. After that the run stops and fails.
flaky: setup-test ## run each kernel test 20 times: none may fail; ARGS='tests/kernel/test_sums.py' runs one file
	@$(as_root) env PYTHONDONTWRITEBYTECODE=1 $(bin)/pytest -p no:cacheprovider -m kernel --count 20 -n 2 --dist loadfile \
	    --session-timeout 43200 $(ARGS)

examples: setup-test ## run the property tests with 1,000 examples each instead of 25
	@OFFTOP_EXAMPLES=1000 $(bin)/pytest -p no:cacheprovider -m 'hypothesis and not kernel' --timeout 1800 -n 2 $(ARGS)

# -W makes a dead link an error.
docs: setup-test ## build the manual as HTML: build/docs/index.html
	@$(bin)/sphinx-build -q -W --keep-going -d build/doctrees docs build/docs && echo build/docs/index.html

bench: setup-bench ## measure what offtop costs, side by side with similar tools
	@$(as_root) $(bin)/python -m bench $(ARGS)

incidents: setup-bench ## run real programs into trouble, and check what offtop reports about each
	@packaging/system.sh incident
	@$(as_root) $(bin)/pytest -p no:cacheprovider -m incident tests/incidents $(ARGS)

consumers: setup-test ## open each export in the program that it is made for
	@packaging/system.sh consumer
	@$(bin)/pytest -p no:cacheprovider -m consumer tests/consumers $(ARGS)

exits: setup-test ## compare the function exits that --within finds in large programs with objdump's, in 10 minutes
	@packaging/system.sh exits
	@$(bin)/pytest -p no:cacheprovider -m exits tests/exits $(ARGS)

fleet: setup-test ## have Prometheus and go tool pprof read what offtop agent serves, offtop fleet ask it, and try the files in fleet/
	@packaging/system.sh fleet
	@$(bin)/pytest -p no:cacheprovider -m fleet tests/fleet $(ARGS)

bccs: ## run offtop with the bcc and Python of Debian 12, 13 and sid, on this kernel; needs root and mmdebstrap
	@$(as_root) packaging/bccs.sh $(ARGS)

faults: setup-test ## break what is around offtop at any moment: ctrl-C in each phase, a terminal that hangs, and so on
	@$(as_root) env PYTHONDONTWRITEBYTECODE=1 $(bin)/pytest -p no:cacheprovider -m fault tests/faults $(ARGS)

losses: setup-test ## start 20,000 threads a second, let 12,000 exit together, and so on: what is lost is reported
	@$(as_root) env PYTHONDONTWRITEBYTECODE=1 $(bin)/pytest -p no:cacheprovider -m losses tests/losses $(ARGS)

soak: setup-test ## start and end processes for an hour, then let 10,000 threads sleep for another, or SECONDS=300: no memory grows
	@$(as_root) env OFFTOP_SOAK_SECONDS=$(SECONDS) PYTHONDONTWRITEBYTECODE=1 $(bin)/pytest -p no:cacheprovider -m soak tests/soak $(ARGS)

# Downloads are kept in OFFTOP_KERNELS (~/.cache/offtop).
kernels: setup-test ## run offtop on other kernels in QEMU; KERNELS=6.1,arm64 runs these
	@packaging/system.sh guest
	@$(bin)/pytest -p no:cacheprovider -m guest tests/kernels $(ARGS)

format: setup-test ## format the code, and fix what the linter can fix
	@$(bin)/ruff format
	@$(bin)/ruff check --fix
	@$(bin)/clang-format -i bpf/*.[ch]

# The same commit gives the same bytes: everything in them has the commit's time. A copy without git has the changelog's.
dist: export SOURCE_DATE_EPOCH ?= $(epoch)
dist: setup-dist ## build the wheel, one file, .rpm and (where dpkg-deb is) .deb into dist/; MACHINE=aarch64 for arm64
	@mkdir -p dist
	@$(bin)/python packaging/dist.py dist $(KINDS) $(if $(MACHINE),--machine $(MACHINE))

lock: setup-dist ## have packages get the newest releases of their Python parts that pyproject.toml allows
	@$(bin)/python packaging/lock.py

# As root, because only root's containers can use BPF, and root's podman does not see images of other users.
image: KINDS = deb
image: dist ## build the container image offtop:VERSION with podman, buildah or docker; ARGS are options of its build
	@$(as_root) env TOOL='$(TOOL)' packaging/image.sh dist/offtop_$$($(bin)/python -m hatchling version)-1_$$(dpkg --print-architecture).deb $(ARGS)

release: setup-dist ## check, build and tag VERSION for both machines, with checksums and SBOM, into dist/VERSION/; publishes nothing
	@$(bin)/python packaging/release.py $(or $(VERSION),$(error Name the version: make release VERSION=0.1.0))

packages: export SOURCE_DATE_EPOCH ?= $(epoch)
packages: setup-dist ## install the packages in clean systems, use offtop there, upgrade and remove it; ARGS='trixie' takes one
	@packaging/system.sh package
	@$(as_root) env PYTHONDONTWRITEBYTECODE=1 SOURCE_DATE_EPOCH=$$SOURCE_DATE_EPOCH packaging/packages.sh $(ARGS)

install: ## install offtop where `sudo offtop` finds it: PREFIX (/usr/local), DESTDIR
	@$(if $(SYSTEM)$(DESTDIR),:,packaging/system.sh run)
	@$(if $(DESTDIR),,$(as_root)) env PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' packaging/install.sh

uninstall: ## remove what `make install` has installed
	@home='$(DESTDIR)$(PREFIX)/lib/offtop'; if [ -e "$$home" ] && ! [ -e "$$home/pyvenv.cfg" ]; then \
	    echo "offtop: make install has not made $$home. Remove the package instead, or name another PREFIX" >&2; exit 1; fi
	@$(if $(DESTDIR),,$(as_root)) rm -rf '$(DESTDIR)$(PREFIX)/lib/offtop' '$(DESTDIR)$(PREFIX)/bin/offtop' \
	    '$(DESTDIR)$(PREFIX)/share/man/man8/offtop.8.gz' \
	    '$(DESTDIR)$(PREFIX)/share/bash-completion/completions/offtop' \
	    '$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_offtop' \
	    '$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/offtop.fish' '$(DESTDIR)/var/cache/offtop'

clean: ## remove everything that make has created in this directory
	@rm -rf .venv dist build docs/generated .pytest_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
