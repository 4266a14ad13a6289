# vfm: one static library, small commands.  `make help` lists the targets.
# Everything that a probe finds out can be overridden: make CC=clang SAN=address,undefined

VERSION := 0.1.0
PREFIX  ?= /usr/local
DESTDIR ?=
ifeq ($(origin CC),default)
CC      := gcc
endif
comma   := ,
B       ?= build$(if $(SAN),-$(subst $(comma),-,$(SAN)))
# Dependency files name targets as this make knows them; so a folder in this tree has one spelling.
override B := $(patsubst $(CURDIR)/%,%,$(B))
space   := $(subst ,, )

# The one list of Debian packages: needed to build and run; to check; to check under Slurm; to lint; to fuzz; to package; for .ci/run.
DEB        := gcc make pkg-config libjansson-dev libyaml-dev libavformat-dev libavcodec-dev libavutil-dev libswscale-dev libavfilter-dev \
              libsqlite3-dev zlib1g-dev libssl-dev libutf8proc-dev libgumbo-dev liblapack-dev
DEB_CHECK  := g++ libcmocka-dev perl jq ffmpeg mandoc openssl python3 clang-format procps zsh fish
DEB_SLURM  := slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge libpmi2-0 iproute2 util-linux procps
DEB_LINT   := clang-tidy cppcheck shellcheck mandoc
DEB_FUZZ   := clang libclang-rt-14-dev
DEB_PACK   := dpkg-dev
DEB_CI     := git mmdebstrap debian-archive-keyring util-linux

# ---- flags ---------------------------------------------------------------
# A build may leave out ffmpeg, sqlite (with the commands that read media) and text (tokenization):
# WITHOUT='ffmpeg sqlite text', as `make gpu` does.
# DEPS=DIR: jansson, yaml, zlib, libcrypto and cmocka are in DIR/include and DIR/lib, where tests/gpu/deps put them.
WITHOUT ?=
DEPS    ?=
with     = $(if $(filter $(1),$(WITHOUT)),,$(2))
PKGS    := jansson yaml-0.1 zlib libcrypto lapack $(call with,ffmpeg,libavformat libavcodec libavutil libswscale libavfilter) $(call with,sqlite,sqlite3) \
	$(call with,text,libutf8proc gumbo)
WARN    := -Wall -Wextra -Wno-missing-field-initializers -Wmissing-prototypes -Wshadow -Wnested-externs -Wstrict-prototypes -Wvla
# The sanitizers' own checks make gcc see paths that do not exist.
WARN    += $(if $(SAN),-Wno-format-truncation -Wno-format-overflow -Wno-maybe-uninitialized)
OPT     ?= -O2 -g
CFLAGS  ?= $(OPT)
# -fPIC: the CUDA plugin takes in parts of the library.
ALL_CFLAGS = -std=c11 -fPIC -fno-semantic-interposition -D_GNU_SOURCE -Ilib $(WARN) $(if $(WERROR),-Werror) -fopenmp-simd -fno-math-errno -fno-trapping-math \
             -ffp-contract=off -MMD -MP $(CFLAGS) $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer)
PKG_CFLAGS := $(if $(DEPS),-isystem $(DEPS)/include,$(shell pkg-config --cflags $(PKGS) 2>/dev/null))
LIBS   := $(if $(DEPS),-L$(DEPS)/lib -ljansson -lyaml -lz -lcrypto,$(or $(shell pkg-config --libs $(PKGS) 2>/dev/null),-ljansson -lyaml -lz -lcrypto)) -lpthread -lm -ldl
CMOCKA  = $(if $(DEPS),-L$(DEPS)/lib -Wl$(comma)-rpath$(comma)$(abspath $(DEPS)/lib)) -lcmocka
LDFLAGS ?=
ALL_LDFLAGS = -Wl,--as-needed $(LDFLAGS) $(if $(SAN),-fsanitize=$(SAN))

# Under a sanitizer a size that cannot be had is an error to be handled, and any finding ends the test.
export ASAN_OPTIONS  ?= allocator_may_return_null=1
export UBSAN_OPTIONS ?= print_stacktrace=1:halt_on_error=1

# A source file named *_avx2.c, *_avx512.c, … is compiled for that instruction set and
# called only where the CPU has it (lib/device/cpu/cpu_isa.h).
ISA_avx2       := -mavx2 -mfma -mf16c
ISA_avx512     := $(ISA_avx2) -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512
ISA_avx512bf16 := $(ISA_avx512) -mavx512bf16
ISA_amx        := $(ISA_avx512bf16) -mamx-tile -mamx-bf16
isa_flags = $(ISA_$(lastword $(subst _, ,$(basename $(notdir $(1))))))
KERNEL_CFLAGS := -O3 -ffp-contract=fast -fno-signed-zeros

# ---- what there is ---------------------------------------------------------
# (gemm_plan.c, gemm_choice.c and fault.c need no header of CUDA: they stand in the library, where tests see them.)
CUDA_KERN := $(wildcard lib/device/cuda/kern/*.cu)
CUDA_SRC := $(filter-out lib/device/cuda/gemm_plan.c lib/device/cuda/gemm_choice.c lib/device/cuda/fault.c,$(wildcard lib/device/cuda/*.c)) lib/comm/device/comm_nccl.c lib/comm/device/cuda_plugin.c
ALL_SRC := $(wildcard lib/*/*.c lib/*/*/*.c)
LIB_SRC := $(filter-out $(CUDA_SRC) $(if $(call with,ffmpeg,1),lib/media/av/no_ffmpeg.c,$(shell grep -lE '<lib(av|sw)|media/av/av\.h' $(ALL_SRC))) \
	$(if $(call with,sqlite,1),,$(shell grep -l '<sqlite3' $(ALL_SRC))) \
	$(if $(call with,text,1),lib/encoder/text/no_text.c,$(shell grep -lE '<(utf8proc|gumbo)' $(ALL_SRC))),$(ALL_SRC))
LIB_OBJ := $(LIB_SRC:%.c=$(B)/%.o)
LIB     := $(B)/lib/libvfm.a
CMDS    := $(filter-out $(if $(WITHOUT),vfm-curate vfm-sample),$(notdir $(wildcard cmd/vfm-*)))
BINS    := $(CMDS:%=$(B)/bin/%)
CMD_SRC := $(wildcard cmd/*/*.c cmd/*/*/*.c)
UNIT    := $(patsubst tests/unit/%.c,$(B)/tests/unit/%,$(wildcard tests/unit/test_*.c))
TOOLS   := $(patsubst tests/tools/%.c,$(B)/tests/tools/%,$(wildcard tests/tools/*.c))
OPTESTS := $(patsubst tests/ops/%.c,$(B)/tests/ops/%,$(wildcard tests/ops/test_*.c))
MESH    := $(B)/tests/mesh/meshes
GPU     := $(patsubst tests/gpu/%.c,$(B)/tests/gpu/%,$(filter-out tests/gpu/gaps.c,$(wildcard tests/gpu/*.c)))
GPU_CU  := $(patsubst tests/gpu/%.cu,$(B)/tests/gpu/%,$(wildcard tests/gpu/*.cu))
MAN     := $(wildcard man/*.[1-9])

.PHONY: all deps deps-check deps-slurm deps-lint deps-fuzz deps-pack deps-ci demo deb check check-build check-quick check-unit check-unit-quick check-ops check-cuda check-cli check-mesh check-slurm check-abuse check-learn check-format tests lint layers format \
        install clean help fuzz fuzz-build lint-shell lint-man lint-cppcheck FORCE
.DELETE_ON_ERROR:
.SECONDARY:

all: $(LIB) $(BINS)

help:
	@echo "make            build the commands into $(B)/bin; with nvcc also the CUDA plugin: for the GPU of this machine, else sm_90a"
	@echo "                (CUDA_ARCHS=all: sm_80, sm_89, sm_90a, sm_100a, sm_120 and PTX; CUDA_ARCHS='80 90a': these)"
	@echo "make demo       the whole pipeline on a CPU, end to end (TRAIN_S=SECONDS of training, VIDEOS=DIR for your own clips)"
	@echo "make check      all tests, and which took longest; check-quick (2 minutes), check-unit, check-ops, check-cuda, check-cli, check-mesh, check-slurm, check-abuse run a part (V=1, T=tests/cli/one.t)"
	@echo "                (P='check-unit check-mesh': these parts, with the report)"
	@echo "make check-learn  train for minutes, then see whether samples show what was asked for"
	@echo "make deps       install the Debian packages that building needs (deps-check, deps-lint: more)"
	@echo "make lint       clang-tidy, cppcheck, shellcheck, mandoc, layer order"
	@echo "make fuzz       build the fuzz targets and run each for FUZZ_S seconds"
	@echo "make format     clang-format over all sources; check-format only looks"
	@echo "make gpu        what tests/gpu/run needs, into $(B)/gpu, to be copied to a machine with a GPU: without FFmpeg and sqlite"
	@echo "make install    DESTDIR= PREFIX=$(PREFIX)"
	@echo "make deb        Debian packages into $(B)/deb: vfm, and vfm-cuda where nvcc is"
	@echo "SAN=address,undefined   WERROR=1   CC=clang   are understood by all of them"

# V=1 shows the commands.
Q   := $(if $(V),,@)
say  = $(if $(V),,@printf '  %-3s %s\n' $(1) $(2))

# ---- rules ------------------------------------------------------------------
$(B)/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(ALL_CFLAGS) $(PKG_CFLAGS) $(if $(filter lib/device/cpu/%,$<),$(KERNEL_CFLAGS)) $(if $(filter $(CUDA_SRC),$<),$(CUDA_INC:%=-isystem %) -fvisibility=hidden) $(call isa_flags,$<) -c -o $@ $<

# A folder of a command names its files as the command does: "predict/matrix_rows.h".
$(B)/cmd/vfm-bench/%.o: ALL_CFLAGS += -Icmd/vfm-bench
$(B)/lib/io/version.o: ALL_CFLAGS += -DVFM_VERSION='"$(VERSION)"' -DVFM_COMMIT='"$(COMMIT)"'
COMMIT := $(shell git rev-parse --short=10 HEAD 2>/dev/null || echo unknown)
# Rebuilt when the commit changes, and only then.
$(shell mkdir -p $(B) && (echo '$(COMMIT)' | cmp -s - $(B)/commit || echo '$(COMMIT)' > $(B)/commit))
$(B)/lib/io/version.o: $(B)/commit

$(LIB): $(LIB_OBJ)
	@mkdir -p $(@D)
	$(call say,AR,$@)
	$(Q)rm -f $@ && $(AR) rcs $@ $^

# ---- the CUDA plugin: built where nvcc is -------------------------------------
# ptxas reports the registers, memory and spills of each kernel (tests/cuda/ptxas).
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(shell command -v nvcc 2>/dev/null || echo /usr/local/cuda/bin/nvcc)))
NVCC      ?= $(if $(CUDA_HOME),$(CUDA_HOME)/bin/nvcc)
# CUDA_ARCHS, as CMake writes them: 90a is machine code, 90-virtual is PTX, which the driver compiles.  By default the GPUs of this
# machine, or 90a where no GPU is present.  `all`: Ampere, Ada, Hopper, Blackwell of data centers and of PCs, and PTX for later GPUs.
CUDA_KNOWN := 80 89 90a 100a 120 90-virtual
ifneq ($(CUDA_HOME),)
override CUDA_ARCHS := $(sort $(if $(filter all,$(CUDA_ARCHS)),$(CUDA_KNOWN),$(or $(CUDA_ARCHS),$(shell \
	nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -x '[0-9]*\.[0-9]*' | \
	sed 's/^8\.9/89/; s/^8\..*/80/; s/^9\.0/90a/; s/^10\.0/100a/; s/^12\..*/120/; s/.*\..*/90-virtual/'),90a)))
$(foreach a,$(filter-out $(CUDA_KNOWN),$(CUDA_ARCHS)),$(error CUDA_ARCHS: unknown architecture '$a' (all, or some of $(CUDA_KNOWN))))
# For makes that tests start.
export CUDA_ARCHS
# Rewritten when the list changes, so that the kernels are rebuilt.
$(shell mkdir -p $(B) && (echo '$(CUDA_ARCHS)' | cmp -s - $(B)/cuda_archs || echo '$(CUDA_ARCHS)' > $(B)/cuda_archs))
endif
gencode   = $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a:-virtual=),code=$(if $(filter %-virtual,$(a)),compute,sm)_$(a:-virtual=))
NVCC_FLAGS = -std=c++17 -Ilib -O3 -lineinfo $(gencode) -Xcompiler -fPIC,-Wall,-Wextra,-Wno-unknown-pragmas,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics \
             $(if $(WERROR),-Werror all-warnings -Xcompiler -Werror) --expt-relaxed-constexpr -Xptxas -v --compress-mode=size -MMD -MP
CUDA_OBJ  := $(patsubst %.cu,$(B)/%.cu.o,$(CUDA_KERN)) $(patsubst %.c,$(B)/%.o,$(wildcard $(CUDA_SRC)))
# Headers and libraries lie in folders of their own where they came as Python packages; the libraries there have no name without a number.
CUDA_INC    ?= $(CUDA_HOME)/include
CUDA_LIBDIR ?= $(CUDA_HOME)/lib64
cuda_lib   = $(or $(firstword $(wildcard $(CUDA_LIBDIR:%=%/lib$(1).so) $(CUDA_LIBDIR:%=%/lib$(1).so.*))),-l$(1))
CUDA_LIBS  = $(call cuda_lib,cublasLt) $(call cuda_lib,cudnn_graph) $(call cuda_lib,nccl) \
	$(or $(firstword $(wildcard $(CUDA_LIBDIR:%=%/libcudart_static.a))),$(call cuda_lib,cudart)) -Wl,--wrap=__cudaRegisterFunction -ldl -lrt -lpthread -lm
CUDA_SO   := $(B)/lib/libvfm_cuda.so
$(B)/lib/%.cu.o: lib/%.cu $(B)/cuda_archs Makefile
	@mkdir -p $(@D)
	$(call say,NV,$<)
	$(Q)$(NVCC) $(NVCC_FLAGS) -c -o $@ $< >$(@:.o=.ptxas) 2>&1 || { cat $(@:.o=.ptxas); exit 1; }
# What of the library the plugin uses is copied into it, and nothing but vfm_plugin is seen from outside.
$(CUDA_SO): $(CUDA_OBJ) $(LIB) lib/comm/device/cuda_plugin.map
	$(call say,LD,$@)
	$(Q)$(CC) -shared -o $@ $(CUDA_OBJ) $(LIB) -Wl,-z,defs -Wl,--as-needed -Wl,--exclude-libs,ALL -Wl,--version-script=lib/comm/device/cuda_plugin.map \
		-Wl,--enable-new-dtags,-rpath,'$$ORIGIN:$(subst $(space),:,$(strip $(CUDA_LIBDIR)))' $(LDFLAGS) $(CUDA_LIBS) $(LIBS)
# Not under a sanitizer, which cannot look into CUDA.
PLUGIN := $(if $(SAN),,$(if $(CUDA_HOME),$(CUDA_SO)))
all: $(PLUGIN)

.SECONDEXPANSION:
cmd_objs = $(patsubst %.c,$(B)/%.o,$(wildcard cmd/$(1)/*.c cmd/$(1)/*/*.c))
$(BINS): $$(call cmd_objs,$$(notdir $$@)) $(LIB)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) $(LIB) $(LIBS)

# Our CUDA kernels a second time, as C++ for the host (lib/device/cuda/kern/emu.h).
EMU_CXXFLAGS = -std=c++17 -D_GNU_SOURCE -DVFM_EMU -Ilib -Wall -Wextra -Wno-unknown-pragmas $(if $(WERROR),-Werror) -fno-exceptions -fno-rtti -fno-threadsafe-statics \
               -fno-strict-aliasing -ffp-contract=off -MMD -MP $(OPT) $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer)
EMU_OBJ := $(patsubst %.cu,$(B)/emu/%.o,$(CUDA_KERN) $(wildcard tests/ops/*.cu)) $(B)/emu/emu.o $(B)/tests/ops/emu_dev.o $(B)/tests/ops/emu_attn.o $(B)/tests/ops/emu_lt.o
$(B)/emu/%.o: %.cu Makefile
	@mkdir -p $(@D)
	$(call say,CXX,$<)
	$(Q)$(CXX) $(EMU_CXXFLAGS) -x c++ -c -o $@ $<
$(B)/emu/emu.o: tests/ops/emu.cpp Makefile
	@mkdir -p $(@D)
	$(call say,CXX,$<)
	$(Q)$(CXX) $(EMU_CXXFLAGS) -c -o $@ $<

$(UNIT) $(OPTESTS): $(B)/tests/%: $(B)/tests/%.o $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) $(LIB) $(CMOCKA) $(LIBS)

# Plugins, whole and faulty, for test_plugin.
FAKES := good abi commit symbol name
FAKE_abi    := -DFAKE_ABI=4711
FAKE_commit := -DFAKE_COMMIT='"0123456789"'
FAKE_symbol := -DFAKE_SYMBOL=other
$(FAKES:%=$(B)/tests/plugin/libvfm_%.so): $(B)/tests/plugin/libvfm_%.so: tests/plugin/fake.c $(LIB)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(filter-out -MMD -MP,$(ALL_CFLAGS)) -DFAKE_NAME='"$(if $(filter name,$*),other,$*)"' $(FAKE_$*) -shared -o $@ $< $(LIB) $(LDFLAGS)
$(B)/tests/unit/test_plugin: $(FAKES:%=$(B)/tests/plugin/libvfm_%.so)
$(B)/tests/unit/test_encoder_memory: ALL_LDFLAGS += -Wl,--wrap=vfm_cpu_open,--wrap=vfm_sampler_run

$(B)/tests/ops/%.o $(B)/tests/cuda/%.o $(B)/tests/fuzz/%.o: ALL_CFLAGS += -Itests/unit
$(OPTESTS): $(B)/tests/ops/ref.o $(B)/tests/ops/mirror.o $(EMU_OBJ)
OPS_PARTS := $(patsubst %.c,$(B)/%.o,$(wildcard tests/ops/ops_*.c))
$(B)/tests/ops/test_ops: $(OPS_PARTS)
$(B)/tests/ops/test_launches: $(B)/lib/device/cuda/attn_pack.o

# Attention through cuDNN: graphs computed on the host, and plans built for devices that are not there.
CUDA_TESTS := $(if $(CUDA_HOME),$(B)/tests/cuda/test_attn $(B)/tests/cuda/test_graph $(B)/tests/cuda/test_nccl $(if $(PLUGIN),$(B)/tests/cuda/test_first_use $(B)/tests/cuda/cudnn_plans))
$(B)/tests/cuda/%.o: ALL_CFLAGS += $(CUDA_INC:%=-isystem %)
$(B)/tests/cuda/test_attn: $(addprefix $(B)/,tests/cuda/test_attn.o tests/cuda/dnn_ref.o lib/device/cuda/attn_pack.o lib/device/cuda/attn_check.o \
		lib/device/cuda/cudnn_attn.o) \
		$(filter-out %/emu_attn.o,$(EMU_OBJ)) $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) $(LIB) -lcmocka $(LIBS)
$(B)/tests/cuda/test_graph: $(addprefix $(B)/,tests/cuda/test_graph.o lib/device/cuda/cuda_graph.o) $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) $(LIB) -lcmocka $(LIBS)
# NCCL's transport on a mock of NCCL.
$(B)/tests/cuda/test_nccl: $(addprefix $(B)/,tests/cuda/test_nccl.o lib/comm/device/comm_nccl.o) $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) $(LIB) -lcmocka $(LIBS)
# The plugin with a mock of some functions of CUDA.
FIRST_USE_MOCKS := cudaFuncGetAttributes cudaStreamQuery cudaDeviceGetAttribute cudaEventCreate cudaEventDestroy cudaEventRecord cudaEventSynchronize \
	cudaEventElapsedTime cudaGetLastError __cudaPushCallConfiguration cublasLtCreate cublasLtDestroy cublasLtMatmul cublasLtMatmulAlgoCheck \
	cublasLtMatmulAlgoGetHeuristic vfm_now
$(B)/tests/cuda/test_first_use: $(B)/tests/cuda/test_first_use.o $(CUDA_OBJ) $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) $(LIB) $(CUDA_LIBDIR:%=-Wl,-rpath,%) $(FIRST_USE_MOCKS:%=-Wl,--wrap=%) -lcmocka $(CUDA_LIBS) $(LIBS)
$(B)/tests/cuda/cudnn_plans: $(B)/tests/cuda/cudnn_plans.o $(filter-out %/attn.o,$(CUDA_OBJ)) $(LIB) | $(B)/tests/cuda/libcuda.so.1
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) $(LIB) $(CUDA_LIBDIR:%=-Wl,-rpath,%) -lcmocka $(CUDA_LIBS) $(LIBS)
$(B)/tests/cuda/libcuda.so.1: tests/cuda/driver.c Makefile
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) -std=c11 $(WARN) -shared -fPIC -o $@ $<

$(MESH): $(patsubst %.c,$(B)/%.o,$(wildcard tests/mesh/*.c)) $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS)

# What tests/gpu/run needs, on a machine that has nvcc and libraries of CUDA but none of the packages (tests/gpu/README.md).
.PHONY: gpu gpu-build
gpu:
	$(if $(DEPS),,$(Q)tests/gpu/deps $(B)/deps)
	+$(SUB) $(JOBS) WITHOUT='ffmpeg sqlite text' DEPS=$(or $(DEPS),$(abspath $(B)/deps)) B=$(B)/gpu-obj gpu-build
	$(Q)tests/gpu/collect $(B)/gpu-obj $(B)/gpu
gpu-build: $(BINS) $(PLUGIN) $(B)/tests/ops/test_ops $(MESH) $(GPU) $(if $(CUDA_HOME),$(GPU_CU)) $(GAPS)

$(GPU) $(TOOLS): $(B)/tests/%: $(B)/tests/%.o $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) $(LIB) $(LIBS)
# What a device does while a command runs, where there is CUPTI's header; the library is opened when it runs.
CUPTI_INC ?= $(patsubst %/cupti.h,%,$(firstword $(wildcard $(CUDA_INC:%=%/cupti.h) $(CUDA_HOME)/extras/CUPTI/include/cupti.h)))
GAPS := $(if $(CUDA_HOME),$(if $(CUPTI_INC),$(B)/tests/gpu/gaps.so))
$(B)/tests/gpu/gaps.so: tests/gpu/gaps.c
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) -std=gnu11 -O2 $(WARN) $(CUDA_INC:%=-isystem %) $(CUPTI_INC:%=-isystem %) -shared -fPIC -o $@ $< -ldl
# The ceilings of a device, by programs that know nothing of this library.
$(GPU_CU): $(B)/tests/gpu/%: tests/gpu/%.cu $(B)/cuda_archs Makefile
	@mkdir -p $(@D)
	$(call say,NV,$<)
	$(Q)$(NVCC) -std=c++17 -O3 $(gencode) $(CUDA_INC:%=-isystem %) -Xcompiler -Wall,-Wextra $(if $(WERROR),-Werror all-warnings) -o $@ $< $(call cuda_lib,cublasLt) \
		$(CUDA_LIBDIR:%=-Xlinker -rpath=%)

-include $(CUDA_OBJ:.o=.d) $(EMU_OBJ:.o=.d) $(LIB_OBJ:.o=.d) $(GPU:=.d) $(TOOLS:=.d) $(CUDA_TESTS:=.d) $(CMD_SRC:%.c=$(B)/%.d) $(UNIT:=.d) $(patsubst %.c,$(B)/%.d,$(wildcard tests/ops/*.c tests/mesh/*.c))

# ---- packages ----------------------------------------------------------------
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
apt_install = $(SUDO) env DEBIAN_FRONTEND=noninteractive sh -c 'apt-get update -q && apt-get install -qy --no-install-recommends $(1)'
deps:
	$(call apt_install,$(DEB))
deps-check:
	$(call apt_install,$(DEB) $(DEB_CHECK))
deps-slurm:
	$(call apt_install,$(DEB_SLURM))
deps-lint:
	$(call apt_install,$(DEB) $(DEB_CHECK) $(DEB_LINT))
deps-fuzz:
	$(call apt_install,$(DEB) $(DEB_FUZZ))
deps-pack:
	$(call apt_install,$(DEB) $(DEB_PACK))
deps-ci:
	$(call apt_install,$(DEB_CI))

clean:
	rm -rf $(B)

# ---- tests ---------------------------------------------------------------------
# Each in parallel where the user did not say otherwise.
JOBS = $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$(shell nproc))
SUB  = $(MAKE) --no-print-directory

# What `make check` needs, asked for in the cheapest way; prints the first thing that is missing.
have = command -v $(1) >/dev/null || { echo "$(1) is missing"; exit 1; };
probe_build = $(call have,$(firstword $(filter-out ccache,$(CC)))) $(call have,pkg-config) \
	pkg-config --print-errors --exists $(PKGS) || \
	{ echo "a library is missing"; exit 1; }
probe_check = $(call have,$(firstword $(filter-out ccache,$(CXX)))) $(call have,prove) $(call have,jq) $(call have,ffmpeg) $(call have,mandoc) $(call have,python3) $(call have,clang-format) $(call have,pgrep) \
	pkg-config --exists cmocka || { echo "cmocka is missing"; exit 1; }

# Slurm is asked for where its tests can run: as root.
probe_slurm = [ "$$(id -u)" != 0 ] || { $(call have,slurmctld) $(call have,slurmd) $(call have,srun) $(call have,munged) $(call have,ip) \
	$(call have,pgrep) true; }

check:
	@($(probe_build)) && ($(probe_check)) || $(SUB) deps-check
	@($(probe_slurm)) || $(SUB) deps-slurm
	+@$(PARTS) $(P)
P ?= check-build layers check-format check-unit check-ops check-cuda check-cli check-mesh check-slurm check-abuse

# Runs each part, then prints the seconds of the parts and of the slowest tests, and the counts.
PARTS = LOGS=$(B)/check MAKE='$(SUB) $(JOBS)' tests/parts.sh

check-build: all tests
	@tests/calls.sh $(B)
tests: $(UNIT) $(OPTESTS) $(MESH) $(GPU)

check-quick:
	+@$(PARTS) layers check-unit-quick

# A binary a file, two at a time.
RUN_TESTS = @V=$(V) TEST_TIMEOUT=$(TEST_TIMEOUT) tests/run_tests.sh
TEST_TIMEOUT ?= 600

check-unit: $(UNIT)
	$(RUN_TESTS) $(UNIT)

# Without the tests of many ranks or streams that take half of the time.
QUICK := $(filter-out $(addprefix $(B)/tests/unit/,test_comm test_comm_net test_comm_faults test_comm_dev test_async_mock),$(UNIT))
check-unit-quick: $(QUICK)
	$(RUN_TESTS) $(QUICK)

check-ops: $(OPTESTS)
	$(RUN_TESTS) $(filter-out %/test_ops,$(OPTESTS)) $(addprefix $(B)/tests/ops/test_ops=,test_parity -test_parity)

# T=tests/cli/one.t runs one.  version.t measures time and therefore runs alone.
T ?= $(sort $(wildcard tests/cli/*.t))
check-cli: all $(TOOLS)
	@if [ -n "$(T)" ]; then B="$(abspath $(B))" prove --timer $(if $(V),-v) -j2 --rules 'seq=*/version.t' --rules 'par=**' $(T); fi

# A Slurm of its own for each file (tests/slurm/README.md); as root, else skipped.
SLURM_T = $(sort $(wildcard tests/slurm/*.t))
check-slurm: all $(B)/tests/unit/test_train $(B)/tests/unit/test_launch
	B="$(abspath $(B))" prove --timer $(if $(V),-v,--failures --comments) -j2 $(SLURM_T)

# Random faults in every stage, for ABUSE_S seconds.
check-abuse: all $(TOOLS)
	B="$(abspath $(B))" ABUSE_S=$(ABUSE_S) prove --timer $(if $(V),-v,--failures --comments) tests/abuse/campaign.t tests/abuse/tars.t
ABUSE_S ?= 120

# What the kernels take on the chip.
check-cuda: export LD_LIBRARY_PATH := $(abspath $(B)/tests/cuda):$(LD_LIBRARY_PATH)
check-cuda: $(PLUGIN) $(if $(PLUGIN),$(GPU_CU)) $(CUDA_TESTS)
	@$(if $(PLUGIN),tests/cuda/ptxas $(patsubst %.cu,$(B)/%.cu.ptxas,$(CUDA_KERN)),echo "skip: the CUDA plugin is not compiled$(if $(SAN), for a sanitizer,: no nvcc)")
	$(RUN_TESTS) $(CUDA_TESTS)

# Every layout against a single process, then the faults that must be seen.
check-mesh: $(MESH)
	$(MESH) $(if $(V),,-q) tests/mesh/meshes.txt
	$(MESH) $(if $(V),,-q) --faults tests/mesh/meshes.txt
	$(MESH) $(if $(V),,-q) --comm shm -k "dit 4" tests/mesh/meshes.txt
	$(MESH) $(if $(V),,-q) --comm staging -k "moe 4" tests/mesh/meshes.txt
	for n in 1 4; do MESH_NO_MEM=$$n $(MESH) $(if $(V),,-q) --comm shm -k "dit 4 dtype=bf16 fsdp" tests/mesh/meshes.txt || exit; done
	VFM_PP_EARLY=1 $(MESH) $(if $(V),,-q) --comm shm --max-ranks 8 -k "stdit pp=" tests/mesh/meshes.txt

# Minutes of training; not a part of check.
check-learn: $(BINS) $(TOOLS)
	B=$(abspath $(B)) tests/learn.sh

layers:
	@tests/layers.sh
	@tests/names.sh

# ---- lint ----------------------------------------------------------------------
SHELL_SRC = $(wildcard tests/*.sh tests/cuda/ptxas tests/*/*.t tests/*/*.sh examples/*.sh examples/*.sbatch bench/*.sh .ci/run share/exec/*.sh share/deb/package share/completion/*.bash)
TIDY_SRC  = $(LIB_SRC) $(CMD_SRC)

lint:
	$(SUB) $(JOBS) -k layers lint-shell lint-man lint-cppcheck $(TIDY_SRC:%=tidy/%)
lint-shell:
	shellcheck -x -S warning -P SCRIPTDIR $(sort $(SHELL_SRC))
lint-man:
	$(if $(MAN),mandoc -Tlint -Wwarning $(MAN))
lint-cppcheck:
	cppcheck --quiet --error-exitcode=1 --std=c11 --enable=warning,portability --inline-suppr -Ilib \
		--suppressions-list=tests/cppcheck.txt lib cmd

tidy/%: FORCE
	@mkdir -p $(B)/tidy
	@clang-tidy --quiet $* -- -std=c11 -D_GNU_SOURCE -Ilib $(PKG_CFLAGS) $(call isa_flags,$*) \
		-DVFM_VERSION='""' -DVFM_COMMIT='""' >$(B)/tidy/$(subst /,-,$*).log 2>&1 || \
		{ $(if $(V),cat,grep -E '(error|warning):') $(B)/tidy/$(subst /,-,$*).log; exit 1; }
FORCE:

# Sources are as clang-format leaves them; `make check` asks for that.
FORMAT_SRC = $(wildcard lib/*/*.[ch] lib/*/*/*.[ch] lib/device/cuda/kern/*.h $(CUDA_KERN) cmd/*/*.[ch] cmd/*/*/*.[ch] tests/*/*.[ch] tests/*/*.cu tests/*/*.cpp bench/*.c share/*/*.c)
format:
	clang-format -i $(FORMAT_SRC)
check-format:
	$(Q)clang-format --dry-run -Werror $(FORMAT_SRC)

# ---- fuzz ----------------------------------------------------------------------
# Everything is built a second time by clang, with coverage and sanitizers.
FUZZ_S  ?= 60
FUZZ_CC ?= clang
FUZZERS := $(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_CFLAGS = -O1 -g -fno-omit-frame-pointer -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
fuzz:
	@$(call have,$(FUZZ_CC)) true
	$(SUB) $(JOBS) B=$(B)/fuzz CC=$(FUZZ_CC) SAN= CFLAGS='$(FUZZ_CFLAGS)' fuzz-build
	@for f in $(FUZZERS); do \
		mkdir -p $(B)/fuzz/corpus/$$f; seeds=tests/fuzz/corpus/$${f#fuzz_}; [ -d $$seeds ] || seeds=; \
		echo "$$f: $(FUZZ_S) s"; \
		$(B)/fuzz/tests/fuzz/$$f -max_total_time=$(FUZZ_S) -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
			-artifact_prefix=$(B)/fuzz/$$f- $(B)/fuzz/corpus/$$f $$seeds >$(B)/fuzz/$$f.log 2>&1 || \
			{ tail -40 $(B)/fuzz/$$f.log; exit 1; }; \
		grep number_of_executed $(B)/fuzz/$$f.log; \
	done
fuzz-build: $(FUZZERS:%=$(B)/tests/fuzz/%)
$(FUZZERS:%=$(B)/tests/fuzz/%): %: %.o $(LIB)
	$(CC) -fsanitize=fuzzer,address,undefined -o $@ $^ $(LIBS)

# ---- demo, install -------------------------------------------------------------
# make expands START before the first line runs: the demo prints the seconds since then.
demo:
	@($(probe_build)) || $(SUB) deps
	+$(SUB) $(JOBS) $(BINS) $(TOOLS)
	START=$(shell date +%s) B=$(abspath $(B)) examples/demo.sh

SHARE = $(DESTDIR)$(PREFIX)/share
BASH_DIR = $(SHARE)/bash-completion/completions
ZSH_DIR  = $(SHARE)/zsh/site-functions
FISH_DIR = $(SHARE)/fish/vendor_completions.d
EXEC_BINS = $(filter-out %/vfm_exec.py,$(wildcard share/exec/*.py share/exec/*.sh))
TRACK_BINS = $(wildcard share/track/track_*.py)
install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(SHARE)/doc/vfm $(BASH_DIR) $(ZSH_DIR) $(FISH_DIR)
	$(if $(BINS),install -m 755 $(BINS) $(DESTDIR)$(PREFIX)/bin)
	$(if $(PLUGIN),install -d $(DESTDIR)$(PREFIX)/lib/vfm && install -m 755 $(PLUGIN) $(DESTDIR)$(PREFIX)/lib/vfm)
	for m in $(MAN); do d=$(SHARE)/man/man$${m##*.}; install -d $$d && install -m 644 $$m $$d || exit 1; done
	install -m 644 README.md ARCHITECTURE.md HACKING.md LICENSE $(SHARE)/doc/vfm
	install -d $(SHARE)/doc/vfm/docs && install -m 644 docs/* $(SHARE)/doc/vfm/docs
	install -d $(SHARE)/vfm/machines && install -m 644 share/machines/*.json $(SHARE)/vfm/machines
	install -d $(SHARE)/vfm/published && install -m 644 share/published/*.json $(SHARE)/vfm/published
	install -d $(SHARE)/vfm/exec && install -m 755 $(EXEC_BINS) $(SHARE)/vfm/exec
	install -m 644 share/exec/README.md share/exec/vfm_exec.py share/exec/mean.c $(SHARE)/vfm/exec
	install -d $(SHARE)/vfm/convert && install -m 755 share/convert/*.py $(SHARE)/vfm/convert
	install -d $(SHARE)/vfm/track && install -m 755 $(TRACK_BINS) $(SHARE)/vfm/track
	install -m 644 share/track/README.md share/track/vfm_track.py $(SHARE)/vfm/track
	install -m 644 share/completion/vfm.zsh $(ZSH_DIR)/_vfm
	for c in $(CMDS); do install -m 644 share/completion/vfm.bash $(BASH_DIR)/$$c && \
		install -m 644 share/completion/vfm.fish $(FISH_DIR)/$$c.fish || exit 1; done

# Debian packages for the release of this machine.  Their version names the commit, since commands and plugin must be of one.
DEB_VERSION := $(VERSION)$(shell git log -1 --format=+git%cd.%h --abbrev=10 --date=format:%Y%m%d%H%M%S 2>/dev/null)
deb:
	@command -v dpkg-shlibdeps >/dev/null && ($(probe_build)) || $(SUB) deps-pack
	+$(SUB) $(JOBS) CUDA_ARCHS=all all
	rm -rf $(B)/deb
	+$(SUB) CUDA_ARCHS=all PREFIX=/usr DESTDIR=$(abspath $(B))/deb/vfm ZSH_DIR=$(abspath $(B))/deb/vfm/usr/share/zsh/vendor-completions install
	B=$(abspath $(B)) DEB_VERSION=$(DEB_VERSION) LIBS='$(LIBS)' CUDA_LIBDIR='$(CUDA_LIBDIR)' NVCC='$(NVCC)' share/deb/package
