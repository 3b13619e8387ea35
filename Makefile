# offtop's chores. `make` alone lists them.
SHELL := /bin/bash
PREFIX ?= /usr/local
DESTDIR ?=
ARGS ?=
# Of make soak: how long.
SECONDS ?= 3600
# SYSTEM=ready: the system packages are there already; don't look.
SYSTEM ?=

bin := .venv/bin
as_root := $(if $(filter 0,$(shell id -u)),,sudo)
# Make's own variables in the environment would reach the programs that the tests start.
unexport MAKEFLAGS MFLAGS MAKELEVEL
# The tests start offtop hundreds of times: a third of such a start would be compiling Python.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup setup-test setup-bench run test docs dist bench flaky incidents consumers exits kernels bccs faults soak format install uninstall \
    clean

help:
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

setup: ## install the system packages that offtop runs on, and make .venv
	@$(if $(SYSTEM),:,packaging/system.sh run)
	@packaging/venv.sh

setup-test: ## the same, with what the tests need
	@$(if $(SYSTEM),:,packaging/system.sh run test)
	@packaging/venv.sh dev

setup-bench: setup-test ## the same, with what offtop is compared with
	@$(if $(SYSTEM),:,packaging/system.sh bench)

# 3 and 4: neither BPF nor /proc can be used here; offtop has said why.
run: setup ## run this checkout on this machine, live, or else a recording; ARGS='-p 4242' passes options
	@$(as_root) $(bin)/offtop $(ARGS) || { \
	    status=$$?; [ $$status = 3 ] || [ $$status = 4 ] || exit $$status; \
	    echo 'So here is what offtop recorded on another machine, in 5 s: offtop demo' >&2; sleep 5; \
	    $(bin)/offtop demo; }

# Every check runs, whichever fails, and pytest last, so that its closing line closes the output.
test: setup-test ## all checks: format, lint, types, walls, tests
	@failed=(); \
	check() { echo "== $$*"; "$$@" || failed+=("$$*"); }; \
	check $(bin)/ruff format --check; \
	check $(bin)/ruff check; \
	check $(bin)/pyright; \
	check $(bin)/lint-imports --no-cache; \
	check $(bin)/pytest -m 'not kernel and not incident and not consumer and not fault and not soak and not exits and not guest' -n 3 --dist worksteal $(ARGS); \
	check $(if $(as_root),sudo env OFFTOP_REQUIRE_KERNEL=$$OFFTOP_REQUIRE_KERNEL PYTHONDONTWRITEBYTECODE=1 \
	    HYPOTHESIS_STORAGE_DIRECTORY=/tmp/offtop-hypothesis) \
	    tests/kernel/run.sh $(bin)/pytest -m kernel $(ARGS); \
	if [ $${#failed[@]} -gt 0 ]; then printf 'FAILED: %s\n' "$${failed[@]}"; exit 1; fi

# Half of a day holds all of them; whatever is left of it then is not run, and the run fails.
flaky: setup-test ## each kernel test 20 times, of which none may fail; ARGS='tests/kernel/accounting/test_outlier_events.py' chooses
	@$(as_root) env PYTHONDONTWRITEBYTECODE=1 $(bin)/pytest -p no:cacheprovider -m kernel --count 20 -n 2 --dist loadfile \
	    --session-timeout 43200 $(ARGS)

# -W: a link that leads nowhere is an error.
docs: setup-test ## the manual as HTML: build/docs/index.html
	@$(bin)/sphinx-build -q -W --keep-going -d build/doctrees docs build/docs && echo build/docs/index.html

bench: setup-bench ## what offtop costs, side by side with its peers
	@$(as_root) $(bin)/python -m bench $(ARGS)

incidents: setup-bench ## real programs in trouble, and what offtop says of each
	@packaging/system.sh incident
	@$(as_root) $(bin)/pytest -p no:cacheprovider -m incident tests/incidents $(ARGS)

consumers: setup-test ## what offtop exports, opened in the programs that it is for
	@packaging/system.sh consumer
	@$(bin)/pytest -p no:cacheprovider -m consumer tests/consumers $(ARGS)

exits: setup-test ## the ends of functions that --within finds in large programs, compared with objdump's, in 10 minutes
	@packaging/system.sh exits
	@$(bin)/pytest -p no:cacheprovider -m exits tests/exits $(ARGS)

bccs: ## offtop on Debian 12, 13 and sid, each with its own bcc and Python, on this kernel; as root, with mmdebstrap
	@$(as_root) packaging/bccs.sh $(ARGS)

faults: setup-test ## what may go wrong around offtop, at every moment: ctrl-C in each phase, a line that hangs, and so on
	@$(as_root) env PYTHONDONTWRITEBYTECODE=1 $(bin)/pytest -p no:cacheprovider -m fault tests/faults $(ARGS)

soak: setup-test ## storms of processes and threads for an hour, or SECONDS=300: all counted, and nothing grows
	@$(as_root) env OFFTOP_SOAK_SECONDS=$(SECONDS) PYTHONDONTWRITEBYTECODE=1 $(bin)/pytest -p no:cacheprovider -m soak tests/soak $(ARGS)

# What is fetched stays in OFFTOP_KERNELS (~/.cache/offtop).
kernels: setup-test ## offtop on other kernels, in machines that QEMU emulates; KERNELS=6.1,arm64 chooses
	@packaging/system.sh guest
	@$(bin)/pytest -p no:cacheprovider -m guest tests/kernels $(ARGS)

format: setup-test ## format the code, and mend what the linter can
	@$(bin)/ruff format
	@$(bin)/ruff check --fix

# The same commit gives the same bytes: everything in them has the commit's time.
dist: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)
dist: setup-test ## build the wheel, and offtop in one file for MACHINE (x86_64 or aarch64; default: this one), into dist/
	@mkdir -p dist
	@$(bin)/python -m hatchling build -t wheel -d dist
	@$(bin)/python packaging/onefile.py dist/offtop-*.whl dist $(if $(MACHINE),--machine $(MACHINE))

install: ## put offtop where `sudo offtop` finds it: PREFIX (/usr/local), DESTDIR
	@$(if $(SYSTEM)$(DESTDIR),:,packaging/system.sh run)
	@$(if $(DESTDIR),,$(as_root)) env PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' packaging/install.sh

uninstall: ## take it away again
	@$(if $(DESTDIR),,$(as_root)) rm -rf '$(DESTDIR)$(PREFIX)/lib/offtop' '$(DESTDIR)$(PREFIX)/bin/offtop' \
	    '$(DESTDIR)$(PREFIX)/share/man/man8/offtop.8.gz' \
	    '$(DESTDIR)$(PREFIX)/share/bash-completion/completions/offtop' \
	    '$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_offtop' \
	    '$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/offtop.fish' '$(DESTDIR)/var/cache/offtop'

clean: ## remove all that make made in this directory
	@rm -rf .venv dist build docs/generated .pytest_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
