# Weir: a pool of LLM inference workers that people reach over SSH.
#
#   make              build weir, weir-broker, weir-worker, weir-gateway into build/bin
#   make demo         install what is missing, fetch the model, run a batch over ssh through a pool, stop it all
#   make try          the same pool, left up, with a chat in it
#   make test         unit, reference and integration tests          make test-long   seeds, fuzz minutes, sanitizers
#   make soak MINUTES=20    a whole pool under clients of every kind while workers are killed
#   make lint         layer rules, formatting, sizes                 make bench       measure beside the peers
#   make bench-stack  measure the whole stack: shared prefix, first token, two users
#   make deps         install the packages a build needs             make install     PREFIX= DESTDIR=
#   make deb          Debian packages in build/deb                   make dist        a tarball for other distributions
#   make uninstall    takes away what make install put there
#   make SAN=address,undefined ...   the same, built with sanitizers into build/address,undefined
#   make CC=clang B=build/clang      another compiler beside it      make V=1         show the commands

MAKEFLAGS += -r
CC     ?= cc
CXX    ?= c++
AR     ?= ar
ifeq ($(origin CC),default)
CC     := cc
endif
SAN    ?=
B      ?= build$(if $(SAN),/$(SAN))
PREFIX ?= /usr/local
JOBS   ?= $(shell nproc)

ifeq ($(V),)
Q = @printf '  %-5s %s\n' $(1) $@;
endif

# --- flags -----------------------------------------------------------------

WARN     := -Wall -Wextra -Wshadow -Wvla -Wstrict-prototypes -Wmissing-prototypes -Wundef -Wpointer-arith
CFLAGS   ?= -O2 -g
CPPFLAGS += -D_GNU_SOURCE -iquote include    # not -I: <limits.h> is the C library's
CPPFLAGS += $(if $(FAULTS),-DWEIR_FAULTS)    # named points of failure, for tests/torture/faults.py: make FAULTS=1 B=build/faults
override CFLAGS += -std=c11 $(WARN) -fno-strict-aliasing -ffp-contract=off -MMD -MP $(if $(WERROR),-Werror)
LDLIBS   := -lm -lpthread
BUILD_ID := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
VERSION  := 0.1.0

ifneq ($(SAN),)
override CFLAGS += -fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer
LDFLAGS += -fsanitize=$(SAN)
endif

# --- what is built from what -----------------------------------------------
# Read each line as "may use": a program links its own folder, then the layers below it, in order.

lib  = $(patsubst %,$(B)/lib%.a,$(1))
objs = $(patsubst %,$(B)/%.o,$(filter-out %/main.c,$(1)))

PROGRAMS := $(B)/bin/weir $(B)/bin/weir-broker $(B)/bin/weir-worker $(B)/bin/weir-gateway
all: $(PROGRAMS)

$(B)/bin/weir-broker:  $(B)/broker/main.c.o  $(call lib,broker common)
$(B)/bin/weir-worker:  $(B)/worker/main.c.o  $(call lib,worker kernels common)
$(B)/bin/weir:         $(B)/client/main.c.o  $(call lib,client common)
$(B)/bin/weir-gateway: $(B)/gateway/main.c.o $(call lib,gateway client common)

$(B)/libcommon.a:  $(call objs,$(wildcard common/*.c))
$(B)/libkernels.a: $(call objs,$(wildcard kernels/*.c kernels/cpu/*.c))
$(B)/libworker.a:  $(call objs,$(wildcard worker/*.c))
$(B)/libbroker.a:  $(call objs,$(wildcard broker/*.c))
$(B)/libclient.a:  $(call objs,$(wildcard client/*.c))
$(B)/libgateway.a: $(call objs,$(wildcard gateway/*.c))

COMMON_LIBS := -lmsgpackc -linih -lxxhash
$(B)/bin/weir-broker:  LDLIBS += -lzmq -lmicrohttpd $(COMMON_LIBS)
$(B)/bin/weir-worker:  LDLIBS += $(COMMON_LIBS)
$(B)/bin/weir:         LDLIBS += -lzmq -ljansson $(COMMON_LIBS)
$(B)/bin/weir-gateway: LDLIBS += -lmicrohttpd -lzmq -lssh -lsqlite3 -ljansson -lz -lzstd $(COMMON_LIBS)

$(PROGRAMS):
	@mkdir -p $(@D)
	$(call Q,LINK)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(B)/lib%.a:
	@mkdir -p $(@D)
	$(call Q,AR)rm -f $@ && $(AR) rcs $@ $^

# One instruction set a file, chosen at run time; never -march=native.
$(B)/kernels/cpu/%.c.o:            override CFLAGS += $(if $(SAN),-O1,-O3)
# No fuzz target goes through the inner loops, and clang takes minutes to instrument them.
$(B)/kernels/cpu/kernels_%.c.o:    override CFLAGS += $(if $(findstring fuzzer,$(SAN)),-fno-sanitize=all)
$(B)/kernels/cpu/%_avx2.c.o:       override CFLAGS += -mavx2 -mfma -mf16c
$(B)/kernels/cpu/%_avxvnni.c.o:    override CFLAGS += -mavx2 -mfma -mf16c -mavxvnni
$(B)/kernels/cpu/%_avx512.c.o:     override CFLAGS += -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mfma -mf16c -mprefer-vector-width=512

# The stamp is rewritten only when the id is another, so a commit rebuilds one file and what links it.
$(B)/common/version.c.o: CPPFLAGS += -DWEIR_VERSION='"$(VERSION)"' -DWEIR_BUILD_ID='"$(BUILD_ID)"'
$(B)/common/version.c.o: $(B)/build-id
$(B)/build-id: FORCE
	@mkdir -p $(@D)
	@echo '$(VERSION) $(BUILD_ID)' | cmp -s - $@ || echo '$(VERSION) $(BUILD_ID)' >$@
FORCE:

$(B)/%.c.o: %.c
	@mkdir -p $(@D)
	$(call Q,CC)$(CC) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

include kernels/cuda/cuda.mk

# --- tests -----------------------------------------------------------------

UNIT := $(patsubst tests/%.c,$(B)/tests/%,$(wildcard tests/unit/test_*.c tests/kernels/test_*.c tests/reference/test_*.c))
HELP := $(call objs,$(filter-out %/fake_worker.c %/fake_nvml.c,$(wildcard tests/support/*.c)))

$(B)/tests/%: $(B)/tests/%.c.o $(HELP) $(call lib,gateway client broker worker kernels common)
	@mkdir -p $(@D)
	$(call Q,LINK)$(CC) $(LDFLAGS) -o $@ $^ -lcmocka -lzmq -lmicrohttpd -lssh -lsqlite3 -ljansson -lz -lzstd $(COMMON_LIBS) $(LDLIBS)

# The broker of this test is the test itself.
$(B)/tests/unit/test_runner: LDFLAGS += -Wl,--wrap=weir_submit,--wrap=weir_cancel,--wrap=weir_query

$(B)/tests/%.o: CPPFLAGS += -I.    # only tests may include private headers: "worker/kv_cache.h"

include tests/emu/emu.mk
include tests/sim/sim.mk

# Fuzz targets bring their own main from libFuzzer: tests/fuzz/run.sh builds them with clang.
$(B)/tests/fuzz/%: LDFLAGS += -fsanitize=fuzzer

# --- measuring --------------------------------------------------------------

$(B)/bench/%: CPPFLAGS += -I.
$(B)/bench/%: $(B)/bench/%.c.o $(call lib,worker kernels common)
	@mkdir -p $(@D)
	$(call Q,LINK)$(CC) $(LDFLAGS) -o $@ $^ $(COMMON_LIBS) $(LDLIBS)

$(B)/bench/load: $(B)/bench/load.c.o $(call lib,client common)
	@mkdir -p $(@D)
	$(call Q,LINK)$(CC) $(LDFLAGS) -o $@ $^ -lzmq -ljansson $(COMMON_LIBS) $(LDLIBS)

bench: $(B)/bench/cpu_bench $(B)/bench/roofline $(B)/bench/kernels_bench $(B)/bin/weir-worker
	@bench/compare.sh $(B)

# Broker, worker and clients together; beside llama-server where WEIR_PEER has one.
bench-stack: $(B)/bench/load $(PROGRAMS)
	@for b in shared_prefix first_token two_users; do WEIR_BIN=$(B)/bin /usr/bin/python3 bench/$$b.py $(B) || exit 1; done

# A worker without a model: says made-up tokens, or misbehaves as the prompt asks.
$(B)/tests/fake_worker: $(B)/tests/support/fake_worker.c.o $(call lib,common)
	@mkdir -p $(@D)
	$(call Q,LINK)$(CC) $(LDFLAGS) -o $@ $^ $(COMMON_LIBS) $(LDLIBS)

# NVML without a device, for the broker's numbers of devices.
$(B)/tests/nvml/libnvidia-ml.so.1: tests/support/fake_nvml.c
	@mkdir -p $(@D)
	$(call Q,LINK)$(CC) $(CFLAGS) -fPIC -shared $(LDFLAGS) -o $@ $<

# Makes one call of a program fail: tests/torture/torture.py.
$(B)/tests/torture/shim.so: tests/torture/shim.c
	@mkdir -p $(@D)
	$(call Q,CC)$(CC) -std=gnu11 -D_GNU_SOURCE -O2 -g -Wall -Wextra -Werror -shared -fPIC -o $@ $< -ldl

tests: $(B)/tests/nvml/libnvidia-ml.so.1 $(UNIT) $(EMU_TESTS) $(if $(SAN),,$(B)/gpu_check $(B)/emulation/libweir_cuda.so) $(SIM) $(B)/tests/fake_worker

# For a second compiler: what nvcc and the emulation's own gcc make is not made again.
plain-tests: $(B)/tests/nvml/libnvidia-ml.so.1 $(UNIT) $(SIM) $(B)/tests/fake_worker $(CUDA_C:%=$(B)/pic/%.o)

test:
	@tools/deps.sh test
	@$(MAKE) -j$(JOBS) --no-print-directory all tests
	@tests/all.sh $(B)

test-long:
	@tools/deps.sh long
	@tests/long.sh

# The same proofs with full counts, and those that make a fresh Debian root: hours.
prove:
	@tools/deps.sh long
	@BUDGET_FACTOR=20 FUZZ_EACH=600 JOB_RUNS=500 SOAK_MINUTES=60 SIM_RUN=prove ORACLE_FACTOR=11 CANARY_REQUESTS=1000 TORTURE_SECONDS=all ALL_MODELS=1 \
	    tests/long.sh second-compiler aarch64 thread-sanitizer sanitizers simulator host-store oracles canary torture jobs soak fuzz services package container \
	    slurm kubernetes
	@tests/clean_root.sh

# A pool under clients of every kind while workers are killed: nothing lost, doubled or wrong, nothing grows.
MINUTES ?= 20
soak: all
	@/usr/bin/python3 tests/soak.py $(MINUTES) $(SEED)

lint:
	@tests/lint.sh

# --- using it --------------------------------------------------------------

deps:
	@tools/deps.sh test

demo try:
	@tools/deps.sh demo
	@$(MAKE) -j$(JOBS) --no-print-directory all
	@model=$$(tools/fetch-model.sh smollm2) && tools/demo.sh $@ "$$model"

install: all $(B)/libweir.a
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(PREFIX)/lib
	install -m 755 $(PROGRAMS) $(if $(filter 1,$(CUDA)),$(CUDA_PLUGIN)) $(DESTDIR)$(PREFIX)/bin
	install -m 644 include/weir.h include/weir_batch.h $(DESTDIR)$(PREFIX)/include
	install -m 644 $(B)/libweir.a $(DESTDIR)$(PREFIX)/lib
	@if command -v python3 >/dev/null; then python3 tools/man.py $(B)/bin $(B)/man && \
	    install -d $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/man/man5 $(DESTDIR)$(PREFIX)/share/man/man8 && \
	    for s in 1 5 8; do install -m 644 $(B)/man/*.$$s $(DESTDIR)$(PREFIX)/share/man/man$$s; done; \
	else echo "without python3 there are no manual pages"; fi
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions
	install -m 644 client/weir.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/weir

# What `make install` with the same PREFIX put there, and nothing else; state and users stay.
uninstall:
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/bin/,$(notdir $(PROGRAMS)) libweir_cuda.so) $(DESTDIR)$(PREFIX)/include/weir.h \
	    $(DESTDIR)$(PREFIX)/include/weir_batch.h $(DESTDIR)$(PREFIX)/lib/libweir.a $(DESTDIR)$(PREFIX)/share/bash-completion/completions/weir \
	    $(foreach s,1 5 8,$(DESTDIR)$(PREFIX)/share/man/man$(s)/weir.$(s) $(DESTDIR)$(PREFIX)/share/man/man$(s)/weir-*.$(s) $(DESTDIR)$(PREFIX)/share/man/man$(s)/weir.*.$(s))

# Debian packages, and a tarball that runs from wherever it is unpacked.
deb: all $(B)/libweir.a
	@CUDA=$(CUDA) tools/deb.sh $(B) $(VERSION)

DIST := weir-$(VERSION)-$(shell uname -m)
dist: all $(B)/libweir.a
	@rm -rf $(B)/$(DIST) && CUDA=$(CUDA) tools/stage.sh $(B) $(B)/$(DIST) ""
	@tar -C $(B) --owner=0 --group=0 -czf $(B)/$(DIST).tar.gz $(DIST) && echo $(B)/$(DIST).tar.gz

# What a program of your own links: the client library with what it needs of common, and no name but weir_*.
LIBWEIR := $(patsubst %,$(B)/client/%.c.o,client curve request dispatch answer answer_json line line_id line_output)
$(B)/libweir.a: $(LIBWEIR) $(call lib,common)
	$(call Q,AR)rm -f $@ && $(LD) -r -o $(B)/libweir.o $^ && objcopy -w --keep-global-symbol='weir_*' $(B)/libweir.o && $(AR) rcs $@ $(B)/libweir.o

clean:
	rm -rf build

.PHONY: all bench bench-stack tests plain-tests test test-long prove soak lint deps demo try install uninstall deb dist clean FORCE
.SECONDARY:
-include $(shell find $(B) -type f -name '*.d' 2>/dev/null)
