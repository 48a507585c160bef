# The CUDA kernels compiled as C++ on the emulation (cuda_emu.h), twice: with AddressSanitizer and UBSan for the tests of
# kernels and of tiny models, and without for a real model.  -g1 is what a sanitizer's report shows, and quicker than -g.  Included by the Makefile.

EMU_FLAGS := -std=c++17 -g1 -Wall -Wextra -Wno-unknown-pragmas -D_Static_assert=static_assert -DWEIR_EMULATION \
             -fno-strict-aliasing -ffp-contract=off -iquote . -iquote include -iquote tests/emu -MMD -MP $(if $(WERROR),-Werror)
EMU_CFLAGS = $(filter-out -O% -g,$(CFLAGS)) -g1 -iquote .
EMU_SAN   := -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
EMU_SOURCES := $(filter-out kernels/cuda/device.cu kernels/cuda/matmul.cu,$(wildcard kernels/cuda/*.cu)) $(wildcard kernels/cuda/*.c) \
               tests/emu/cuda_emu.cc tests/emu/device_emu.cc tests/emu/matmul_emu.cc
# They bring their own sanitizers, and gcc's are not clang's.
EMU_CC    ?= gcc
EMU_CXX   ?= g++
EMU_TESTS := $(if $(SAN),,$(patsubst tests/emu/%.cc,$(B)/tests/emu/%,$(wildcard tests/emu/test_*.cc)) \
             $(patsubst tests/emu/%.c,$(B)/tests/emu/%,$(wildcard tests/emu/test_*.c)))
EMU_PLAIN := $(B)/tests/emu/test_real_model

$(B)/emu-san/%.cu.o: %.cu
	@mkdir -p $(@D)
	$(call Q,EMU)$(EMU_CXX) $(EMU_FLAGS) $(EMU_SAN) -x c++ -c -o $@ $<
$(B)/emu-san/%.cc.o: %.cc
	@mkdir -p $(@D)
	$(call Q,EMU)$(EMU_CXX) $(EMU_FLAGS) $(EMU_SAN) -c -o $@ $<
$(B)/emu-san/%.c.o: %.c
	@mkdir -p $(@D)
	$(call Q,EMU)$(EMU_CC) $(CPPFLAGS) $(EMU_CFLAGS) $(EMU_SAN) -c -o $@ $<
$(B)/emulation/%.cu.o: %.cu
	@mkdir -p $(@D)
	$(call Q,EMU)$(EMU_CXX) $(EMU_FLAGS) -fPIC -O2 -x c++ -c -o $@ $<
$(B)/emulation/%.cc.o: %.cc
	@mkdir -p $(@D)
	$(call Q,EMU)$(EMU_CXX) $(EMU_FLAGS) -fPIC -O2 -c -o $@ $<
$(B)/emulation/%.c.o: %.c
	@mkdir -p $(@D)
	$(call Q,EMU)$(EMU_CC) $(CPPFLAGS) $(EMU_CFLAGS) -fPIC -O2 -c -o $@ $<

$(B)/emu-san/tests/emu/%.o: tests/emu/%.cc
	@mkdir -p $(@D)
	$(call Q,EMU)$(EMU_CXX) $(EMU_FLAGS) $(EMU_SAN) -c -o $@ $<
$(B)/emu-san/tests/emu/%.o: tests/emu/%.c
	@mkdir -p $(@D)
	$(call Q,EMU)$(EMU_CC) $(CPPFLAGS) $(EMU_CFLAGS) $(EMU_SAN) -c -o $@ $<
$(B)/emulation/tests/emu/%.o: tests/emu/%.c
	@mkdir -p $(@D)
	$(call Q,EMU)$(EMU_CC) $(CPPFLAGS) $(EMU_CFLAGS) -O2 -c -o $@ $<

# The emulated backend as a plug-in, and the program that tests/gpu/run.sh runs plug-ins with: no libraries but xxHash.
COMMON_XXHASH ?= -lxxhash
$(B)/emulation/libweir_cuda.so: $(patsubst %,$(B)/emulation/%.o,$(EMU_SOURCES) kernels/cpu/pack.c kernels/cpu/rope.c) \
        $(patsubst %,$(B)/pic/common/%.c.o,error status log clock utf8 version)
	$(call Q,LINK)$(EMU_CXX) -shared -o $@ $^ $(COMMON_XXHASH) -lm
$(B)/gpu_check: $(B)/tests/gpu/gpu_check.c.o \
        $(patsubst %,$(B)/%.c.o,$(addprefix tests/support/,engine_rig synthetic_model) \
          $(addprefix worker/,gguf gguf_value model_file) \
          $(addprefix common/,error status log clock utf8 version)) $(call objs,$(wildcard kernels/cpu/*.c))
	$(call Q,LINK)$(CC) $(LDFLAGS) -o $@ $^ $(COMMON_XXHASH) -ldl $(LDLIBS)

EMU_HELP := $(patsubst %,$(B)/tests/support/%.c.o,engine_rig synthetic_model test_model_path)
EMU_LINK = $(EMU_CXX) $(LDFLAGS) $(1) -o $@ $^ -lcmocka -ljansson $(COMMON_LIBS) $(LDLIBS)

$(filter-out $(EMU_PLAIN),$(EMU_TESTS)): $(B)/tests/emu/%: $(B)/emu-san/tests/emu/%.o $(patsubst %,$(B)/emu-san/%.o,$(EMU_SOURCES)) \
        $(EMU_HELP) $(call lib,worker kernels common)
	@mkdir -p $(@D)
	$(call Q,LINK)$(call EMU_LINK,$(EMU_SAN))
$(EMU_PLAIN): $(B)/tests/emu/%: $(B)/emulation/tests/emu/%.o $(patsubst %,$(B)/emulation/%.o,$(EMU_SOURCES)) $(EMU_HELP) $(call lib,worker kernels common)
	@mkdir -p $(@D)
	$(call Q,LINK)$(call EMU_LINK,)
