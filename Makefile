# fsguard: everything a newcomer needs, by `make help`.
#
# Set-up happens as a prerequisite of what you asked for: system packages by
# apt (with sudo when you are not root), then the environment in .venv from
# lock files with hashes. Both are skipped when they are there already.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check --quiet
# As it was typed, with its spaces and dollar signs; recipes read it as "$$WORKSPACE_ARG".
export WORKSPACE_ARG := $(value WORKSPACE)
# More words for pytest: make test ARGS='-k rename -x'
ARGS ?=

# What a command or header is called -> the Debian and Ubuntu package that brings it. A thing that is
# there in another way (a Python of your own, say) needs no package.
NEED_BUILD := fusermount3:fuse3 cc:gcc pkg-config:pkg-config fuse3.pc:libfuse3-dev \
	libc.h:libc6-dev Python.h:python3-dev ensurepip:python3-venv
# In CI nothing may be left out; elsewhere a test that lacks one of these says so and is skipped.
NEED_CI := $(if $(CI),npm:npm shellcheck:shellcheck systemd-analyze:systemd vagrant:vagrant bwrap:bubblewrap zsh:zsh \
	fish:fish groff:groff-base stress-ng:stress-ng fio:fio)
NEED_TEST := $(NEED_BUILD) git:git sqlite3:sqlite3 rsync:rsync patch:patch setfacl:acl setfattr:attr ps:procps \
	setcap:libcap2-bin tmux:tmux vi:vim-tiny tar:tar findmnt:util-linux $(NEED_CI)
NEED_STRESS := $(NEED_TEST) stress-ng:stress-ng fio:fio

POSIX := $(wildcard tests/mounted/test_posix_*.py)

.PHONY: help mount unmount test stress bench profile check ci clean lock install uninstall deb vagrant-tools vagrant-box vagrant-test system-build system-test system-stress workspace-named FORCE

help: ## this list
	@echo "make TARGET [PYTHON=python3.12]"
	awk -F ':.*## ' '/^[a-z-]+:.*## / {
	  name = $$1 ~ /mount$$/ ? $$1 " WORKSPACE=path" : $$1
	  printf "  %-24s %s\n", name, $$2
	}' $(firstword $(MAKEFILE_LIST))

mount: workspace-named system-build $(VENV)/.runtime ## set up what is missing, guard a directory in place, return when ready
	@if [ ! -e /dev/fuse ] && [ "$$(id -u)" = 0 ]; then modprobe fuse 2>/dev/null || true; fi
	if [ ! -e /dev/fuse ]; then
	  echo "fsguard: this machine has no /dev/fuse. On a normal system: sudo modprobe fuse. In a container: start it" \
	    "with --device /dev/fuse --cap-add SYS_ADMIN." >&2
	  exit 5
	elif ! { : <>/dev/fuse; } 2>/dev/null; then
	  echo "fsguard: you ($$(id -un)) may not open /dev/fuse ($$(stat -c '%A %U:%G' /dev/fuse)). Let every user mount:" \
	    "sudo chmod 666 /dev/fuse (distributions do that at boot), or mount as root: sudo make mount WORKSPACE=..." >&2
	  exit 5
	fi
	w=$$WORKSPACE_ARG
	case $$w in "~"|"~/"*) w=$$HOME$${w#"~"} ;; esac
	$(VENV)/bin/fsguard mount "$$w"
	command -v fsguard >/dev/null || echo "to have the fsguard command in this shell: export PATH=\"$$PWD/$(VENV)/bin:\$$PATH\""

unmount: workspace-named ## end the guard of a directory (says who holds it open, when busy)
	@w=$$WORKSPACE_ARG
	case $$w in "~"|"~/"*) w=$$HOME$${w#"~"} ;; esac
	if [ ! -x $(VENV)/bin/fsguard ]; then
	  echo "fsguard: nothing is installed here ($(VENV) is missing), so nothing was mounted from here." >&2
	  exit 3
	fi
	$(VENV)/bin/fsguard unmount "$$w"

test: system-test $(VENV)/.dev ## all tests: core, adapters, and real mounts (ARGS='-k NAME' for some)
	@# Each test starts programs of ours: where bytecode is not written, each would compile them.
	$(VENV)/bin/python -m compileall -q fsguard tests
	$(if $(strip $(ARGS)),exec $(VENV)/bin/python -m pytest $(wildcard tests/unit tests/adapter tests/mounted) $(ARGS))
	# Beside those that mount, which wait for one another most of the time: what needs no mount, and then
	# the POSIX table, with the lane and without. Its words come at the end.
	beside=$$(mktemp)
	trap 'rm -f "$$beside"' EXIT
	{
	  $(VENV)/bin/python -m pytest $(wildcard tests/unit) || exit
	  $(VENV)/bin/python -m pytest $(POSIX) || exit
	  FSGUARD_TEST_IO=daemon exec $(VENV)/bin/python -m pytest $(POSIX)
	} >"$$beside" 2>&1 &
	code=0
	$(VENV)/bin/python -m pytest $(wildcard tests/adapter) $(filter-out $(POSIX),$(wildcard tests/mounted/test_*.py)) || code=$$?
	wait $$! || code=$$?
	cat "$$beside"
	exit $$code

stress: system-stress $(VENV)/.dev ## the long runs: conformance, killed writers, power cuts, random schedules (ARGS as for test)
	@$(VENV)/bin/python -m pytest tests/stress $(ARGS)
	$(if $(strip $(ARGS)),,FSGUARD_TEST_IO=daemon $(VENV)/bin/python -m pytest tests/mounted) # all without the lane, too

bench: system-build $(VENV)/.dev ## side by side: both modes, native, and other passthrough filesystems (ARGS='-n 1 --only find')
	@FSGUARD_TASK=bench $(VENV)/bin/python -m tests.bench $(ARGS) # as an agent's command would
	$(if $(strip $(ARGS)),,for part in hooks turns decision tape; do $(VENV)/bin/python -m tests.bench.$$part || exit; done)

profile: system-build $(VENV)/.dev ## where the daemon's time goes (ARGS='--only untar --io daemon')
	@FSGUARD_TASK=profile $(VENV)/bin/python -m tests.bench.profile $(ARGS)

check: system-build $(VENV)/.dev ## lint, format, types (strict) and the contracts between modules
	@failed=()
	run() { echo "+ $$*"; "$(VENV)/bin/$$1" "$${@:2}" || failed+=("$$*;"); }
	run ruff check .
	run ruff format --check .
	run mypy
	run lint-imports
	[ $${#failed[@]} -eq 0 ] || { echo "check: not clean: $${failed[*]}" >&2; exit 1; }

ci: ## what the continuous integration runs, from installing to the last leak check
	@.ci/run

lock: ## write the lock files anew (needs uv), after the dependencies in pyproject.toml changed
	@pin() { uv pip compile --quiet --no-header --no-config --python-platform linux --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-emit-find-links "$$@" pyproject.toml >/dev/null; }
	pin --extra top --output-file requirements.lock
	pin --extra dev --constraint requirements.lock --output-file tests/requirements.lock

# PREFIX=/usr/local, DESTDIR= and the rest are described in mount/install.
install: system-build ## for the whole machine: command, mount helper, units, man pages (PREFIX, DESTDIR)
	@export PREFIX DESTDIR SBINDIR DEPS PYTHON NO_COMPILE CC CFLAGS CPPFLAGS LDFLAGS
	mount/install install

uninstall: ## take away what `make install` put there (the same PREFIX and DESTDIR)
	@export PREFIX DESTDIR SBINDIR PYTHON
	mount/install uninstall

# Where `make deb` and the like put what they build.
OUT ?= dist
NEED_DEB := $(NEED_BUILD) dpkg-shlibdeps:dpkg-dev strip:binutils lintian:lintian
deb: ## a Debian package in dist/, examined by lintian (OUT=directory)
	@$(call system_packages,$(NEED_DEB))
	package=$$(PYTHON=$(if $(filter python3,$(PYTHON)),/usr/bin/python3,$(PYTHON)) mount/build-deb "$(OUT)" | tail -n 1)
	lintian --allow-root --fail-on=error,warning "$$package"
	echo "$$package"

NEED_VAGRANT := vagrant:vagrant libvirtd:libvirt-daemon virsh:libvirt-clients qemu-system-x86_64:qemu-system-x86 \
	qemu-img:qemu-utils dnsmasq:dnsmasq-base iptables:iptables mmdebstrap:mmdebstrap sfdisk:fdisk \
	rsync:rsync ssh:openssh-client ip:iproute2 mke2fs:e2fsprogs vagrant-libvirt.gem:vagrant-libvirt \
	qemu.driver:libvirt-daemon-driver-qemu
vagrant-tools: ## install what the next two need, from Debian packages
	@$(call system_packages,$(NEED_VAGRANT))

BOXES := build/vagrant/fsguard-trixie.box build/vagrant/fsguard-bookworm.box
vagrant-box: $(BOXES) ## build the boxes of the test machines (Debian 13 and 12) in build/vagrant, as root

# They hold the Python packages of the lock file, so that a machine needs no network.
build/vagrant/fsguard-%.box: requirements.lock vagrant/build-box vagrant/box-inside | vagrant-tools
	@sudo=(); [ "$$(id -u)" = 0 ] || sudo=(sudo)
	"$${sudo[@]}" vagrant/build-box $* $@

MACHINES ?= ci
vagrant-test: vagrant-tools ## boot a machine, test fsguard in it, reboot, print a table, destroy it (MACHINES='ci old'; ARGS='-k unit')
	@sudo=(); [ "$$(id -u)" = 0 ] || sudo=(sudo --preserve-env=FSGUARD_DRIVER,FSGUARD_BOX_DIR,FSGUARD_KEEP_LOGS)
	"$${sudo[@]}" vagrant/test $(MACHINES) $(if $(strip $(ARGS)),-- $(ARGS))

clean: ## remove the environment, caches and what was compiled
	@rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find fsguard tests -name __pycache__ -type d -prune -exec rm -rf {} +
	find fsguard -name '*.so' -delete

# ---- set-up -----------------------------------------------------------------

workspace-named:
	@if [ -z "$$WORKSPACE_ARG" ]; then
	  echo "fsguard: name the directory: make $(firstword $(MAKECMDGOALS)) WORKSPACE=path" >&2
	  exit 2
	fi

# One shell function: which packages are missing, get them, and be plain about it when that can't be done.
define system_packages
has() {
  case $$1 in
    Python.h) $(PYTHON) -c 'import os, sysconfig as s; os.stat(s.get_path("include") + "/Python.h")' ;;
    ensurepip) $(PYTHON) -c 'import ensurepip, venv' ;;
    fuse3.pc) pkg-config --exists fuse3 ;;
    libc.h) echo '#include <stdio.h>' | cc -E - ;;
    vi) command -v vim || command -v vim.tiny ;;
    vagrant-libvirt.gem | qemu.driver) dpkg-query -W -f '$${db:Status-Status}' "$${need#*:}" | grep -qx installed ;;
    *) command -v "$$1" || [ -x "/usr/sbin/$$1" ] || [ -x "/sbin/$$1" ] ;;
  esac >/dev/null 2>&1
}
new_enough() {
  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "fsguard: Python 3.11 or newer is needed, and $(PYTHON) is $$($(PYTHON) -V 2>&1)." \
      "Name another one: make $(firstword $(MAKECMDGOALS)) PYTHON=python3.12" >&2
    exit 5
  }
}
missing=()
if command -v $(PYTHON) >/dev/null; then new_enough; else missing+=(python3); fi
for need in $(1); do has "$${need%%:*}" || missing+=("$${need#*:}"); done
if [ $${#missing[@]} -gt 0 ]; then
  if ! command -v apt-get >/dev/null; then
    echo "fsguard: please install what these Debian packages bring, then try again: $${missing[*]}" >&2
    exit 5
  fi
  sudo=()
  if [ "$$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "fsguard: missing system packages, and no sudo here. As root: apt-get install $${missing[*]}" >&2
      exit 5
    fi
    sudo=(sudo)
  fi
  echo "fsguard: installing system packages: $${missing[*]}"
  log=$$(mktemp)
  apt() { "$${sudo[@]}" env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 \
    apt-get -qq -y -o DPkg::Lock::Timeout=180 -o Dpkg::Use-Pty=0 "$$@" >>"$$log" 2>&1 </dev/null; }
  if [ $${#sudo[@]} -gt 0 ]; then sudo -v; fi
  if ! { apt update && apt install --no-install-recommends "$${missing[@]}"; }; then
    tail -n 15 "$$log" >&2
    echo "fsguard: apt-get could not install $${missing[*]} (whole log: $$log)" >&2
    exit 5
  fi
  rm -f "$$log"
  for need in $(1); do
    has "$${need%%:*}" || { echo "fsguard: $${need#*:} is installed, but $${need%%:*} is still not found" \
      "(is PYTHON=$(PYTHON) a Python of the system's? its headers and venv have to come with it)" >&2; exit 5; }
  done
fi
new_enough
endef

system-build:
	@$(call system_packages,$(NEED_BUILD))

system-test:
	@$(call system_packages,$(NEED_TEST))

system-stress:
	@$(call system_packages,$(NEED_STRESS))

# An environment is bound to its place and its Python: made anew when the tree was moved or the Python is gone.
ifneq ($(shell [ -x $(VENV)/bin/python ] && cat $(VENV)/.place 2>/dev/null),$(CURDIR))
$(VENV)/.runtime: FORCE
endif

$(VENV)/.runtime: requirements.lock pyproject.toml $(wildcard fsguard/fuse/*.c fsguard/lane/*.[ch]) fsguard/__init__.py | system-build
	@if [ "$$(cat $(VENV)/.place 2>/dev/null)" != "$$PWD" ] || [ ! -x $(VENV)/bin/python ]; then
	  echo "fsguard: making the environment in $(VENV) ($$($(PYTHON) -V))"
	  rm -rf $(VENV)
	  $(PYTHON) -m venv $(VENV)
	fi
	echo "fsguard: installing the locked dependencies (pyfuse3 is compiled: about a minute)"
	$(PIP) install --require-hashes -r requirements.lock
	echo "fsguard: installing fsguard itself"
	# compat: a path in a .pth file, where the default is a finder that costs every start of Python, and so every
	# hook of an agent, 10 ms for pathlib and what else it imports.
	$(PIP) install --no-deps --editable . --config-settings editable_mode=compat
	printf '%s\n' "$$PWD" >$(VENV)/.place
	touch $@

$(VENV)/.dev: tests/requirements.lock $(VENV)/.runtime
	@echo "fsguard: installing what the tests need"
	$(PIP) install --require-hashes -r tests/requirements.lock
	touch $@
