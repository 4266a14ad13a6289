# vfm: one static library, small commands.  `make help` lists the targets.
# Everything that a probe finds out can be overridden: make CC=clang SAN=address,undefined

VERSION := 0.1.0
PREFIX  ?= /usr/local
DESTDIR ?=
CC      ?= gcc
B       ?= build$(if $(SAN),-$(subst $(comma),-,$(SAN)))
comma   := ,

# The one list of Debian packages: needed to build and run; to check; to lint.
DEPS       := gcc make pkg-config libjansson-dev libavformat-dev libavcodec-dev libavutil-dev libswscale-dev \
              libsqlite3-dev zlib1g-dev libssl-dev libdnnl-dev
DEPS_CHECK := libcmocka-dev perl jq ffmpeg mandoc python3-minimal
DEPS_LINT  := clang-tidy clang-format cppcheck shellcheck mandoc
DEPS_FUZZ  := clang libclang-rt-14-dev

# ---- flags ---------------------------------------------------------------
PKGS    := jansson libavformat libavcodec libavutil libswscale sqlite3 zlib libcrypto
WARN    := -Wall -Wextra -Wmissing-prototypes -Wshadow -Wnested-externs -Wstrict-prototypes -Wvla
OPT     ?= -O2 -g
CFLAGS  ?= $(OPT)
ALL_CFLAGS = -std=c11 -D_GNU_SOURCE -Ilib $(WARN) $(if $(WERROR),-Werror) -fopenmp -fno-math-errno -fno-trapping-math \
             -ffp-contract=off -MMD -MP $(CFLAGS) $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer)
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
LIBS    = $(shell pkg-config --libs $(PKGS) 2>/dev/null) -ldnnl -lpthread -lm -ldl
LDFLAGS ?=
ALL_LDFLAGS = -fopenmp -Wl,--as-needed $(LDFLAGS) $(if $(SAN),-fsanitize=$(SAN))

# A source file named *_avx2.c, *_avx512.c, … is compiled for that instruction set and
# called only where the CPU has it (lib/cpu/cpu_isa.h).
ISA_avx2       := -mavx2 -mfma -mf16c
ISA_avx512     := $(ISA_avx2) -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512
ISA_avx512bf16 := $(ISA_avx512) -mavx512bf16
ISA_amx        := $(ISA_avx512bf16) -mamx-tile -mamx-bf16
isa_flags = $(ISA_$(lastword $(subst _, ,$(basename $(notdir $(1))))))
KERNEL_CFLAGS := -O3 -ffp-contract=fast -fno-signed-zeros -fopenmp-simd

# ---- what there is ---------------------------------------------------------
LIB_SRC := $(wildcard lib/*/*.c)
LIB_OBJ := $(LIB_SRC:%.c=$(B)/%.o)
LIB     := $(B)/lib/libvfm.a
CMDS    := $(notdir $(wildcard cmd/vfm-*))
BINS    := $(CMDS:%=$(B)/bin/%)
CMD_SRC := $(wildcard cmd/*/*.c)
UNIT    := $(patsubst tests/unit/%.c,$(B)/tests/unit/%,$(wildcard tests/unit/test_*.c))
OPTESTS := $(patsubst tests/ops/%.c,$(B)/tests/ops/%,$(wildcard tests/ops/test_*.c))
MAN     := $(wildcard man/*.[1-9])

.PHONY: all deps deps-check deps-lint demo check check-quick check-unit check-ops check-cli lint layers format install clean help fuzz
.DELETE_ON_ERROR:
.SECONDARY:

all: $(LIB) $(BINS)

help:
	@echo "make            build the commands into $(B)/bin"
	@echo "make demo       the whole pipeline on a CPU, end to end (VIDEOS=DIR for your own clips)"
	@echo "make check      all tests; check-unit, check-ops, check-cli run a part"
	@echo "make deps       install the Debian packages that building needs (deps-check, deps-lint: more)"
	@echo "make lint       clang-tidy, cppcheck, shellcheck, mandoc, layer order"
	@echo "make fuzz       build the fuzz targets and run each for FUZZ_S seconds"
	@echo "make install    DESTDIR= PREFIX=$(PREFIX)"
	@echo "SAN=address,undefined   WERROR=1   CC=clang   are understood by all of them"

# ---- rules ------------------------------------------------------------------
$(B)/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(PKG_CFLAGS) $(if $(filter lib/cpu/%,$<),$(KERNEL_CFLAGS)) $(call isa_flags,$<) -c -o $@ $<

$(B)/lib/base/version.o: ALL_CFLAGS += -DVFM_VERSION='"$(VERSION)"' -DVFM_COMMIT='"$(COMMIT)"'
COMMIT := $(shell git rev-parse --short=10 HEAD 2>/dev/null || echo unknown)
# Rebuilt when the commit changes, and only then.
$(shell mkdir -p $(B) && (echo '$(COMMIT)' | cmp -s - $(B)/commit || echo '$(COMMIT)' > $(B)/commit))
$(B)/lib/base/version.o: $(B)/commit

$(LIB): $(LIB_OBJ)
	@mkdir -p $(@D)
	rm -f $@ && $(AR) rcs $@ $^

.SECONDEXPANSION:
cmd_objs = $(patsubst %.c,$(B)/%.o,$(wildcard cmd/$(1)/*.c))
$(BINS): $$(call cmd_objs,$$(notdir $$@)) $(LIB)
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) $(LIB) $(LIBS)

$(UNIT) $(OPTESTS): $(B)/tests/%: $(B)/tests/%.o $(LIB)
	$(CC) $(ALL_LDFLAGS) -o $@ $^ -lcmocka $(LIBS)

-include $(LIB_OBJ:.o=.d) $(CMD_SRC:%.c=$(B)/%.d) $(UNIT:=.d) $(OPTESTS:=.d)

# ---- packages ----------------------------------------------------------------
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
apt_install = $(SUDO) env DEBIAN_FRONTEND=noninteractive sh -c 'apt-get update -q && apt-get install -qy --no-install-recommends $(1)'
deps:
	$(call apt_install,$(DEPS))
deps-check:
	$(call apt_install,$(DEPS) $(DEPS_CHECK))
deps-lint:
	$(call apt_install,$(DEPS) $(DEPS_CHECK) $(DEPS_LINT))

clean:
	rm -rf $(B)

# ---- tests ---------------------------------------------------------------------
check-unit: $(UNIT)
	@for t in $(UNIT); do $$t || exit 1; done

check-quick: check-unit
