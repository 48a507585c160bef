# libweir_cuda.so: the CUDA backend as a plug-in.  Included by the Makefile.
#
#   make cuda                          build it (by default with everything else, where nvcc is found)
#   make CUDA=0                        without it (so are builds with sanitizers: the emulation has its own)
#   make cuda RELEASE=1                for sm_80, 86, 89, 90 and 100; without it for sm_80 and sm_90
#   make cuda CUDA_ARCHS="90"          for others; the last is also there as PTX, for newer ones
#
# Options that matter: --fmad=false (a product and a sum are rounded one by one, as on the CPU; fmaf is explicit), the errors
# that insist on launch bounds and streams, and ptxas' refusal of spills (resources.sh looks at the rest).

NVCC       ?= nvcc
CUDA       ?= $(if $(SAN),0,$(if $(shell command -v $(NVCC) 2>/dev/null),1,0))
RELEASE    ?= 0
CUDA_ARCHS ?= $(if $(filter 1,$(RELEASE)),80 86 89 90 100,80 90)
CUDA_LIB   ?= $(shell dirname $$(dirname $$(readlink -f $$(command -v $(NVCC) 2>/dev/null) 2>/dev/null) 2>/dev/null) 2>/dev/null)/lib64

CUDA_PLUGIN  := $(B)/bin/libweir_cuda.so
CUDA_SOURCES := $(wildcard kernels/cuda/*.cu)
CUDA_C       := $(wildcard kernels/cuda/*.c) kernels/cpu/pack.c kernels/cpu/rope.c \
                $(patsubst %,common/%.c,error status log clock utf8 version)
NVFLAGS      := -std=c++17 -O3 -g -lineinfo --fmad=false -D_Static_assert=static_assert \
                -Werror missing-launch-bounds,default-stream-launch,cross-execution-space-call,reorder \
                -Xptxas -v,--warn-on-spills,--warning-as-error \
                -Xcompiler -fPIC,-fvisibility=hidden,-ffp-contract=off,-Wall,-Wno-unknown-pragmas \
                -Xcompiler -iquote,.,-iquote,include
NVARCHS       = $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) \
                -gencode arch=compute_$(lastword $(CUDA_ARCHS)),code=compute_$(lastword $(CUDA_ARCHS))

ifeq ($(CUDA),1)
cuda: $(CUDA_PLUGIN)
all: $(CUDA_PLUGIN)
else
cuda:
	@echo "the CUDA backend, libweir_cuda.so, is not built: no $(NVCC) here, or CUDA=0; everything else works without it"
endif

$(CUDA_PLUGIN): $(patsubst %,$(B)/pic/%.o,$(CUDA_SOURCES) $(CUDA_C))
	@mkdir -p $(@D)
	$(call Q,LINK)$(CXX) -shared $(LDFLAGS) -Wl,-z,defs -o $@ $^ -L$(CUDA_LIB) -lcudart_static $(COMMON_XXHASH) -ldl -lrt -lpthread -lm

$(B)/pic/%.cu.o: %.cu
	@mkdir -p $(@D)
	$(call Q,NVCC)$(NVCC) $(NVFLAGS) $(NVARCHS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $< 2>$@.ptxas || { cat $@.ptxas; exit 1; }
$(B)/pic/%.c.o: %.c
	@mkdir -p $(@D)
	$(call Q,CC)$(CC) $(CPPFLAGS) $(CFLAGS) -iquote . -fPIC -fvisibility=hidden -c -o $@ $<
$(B)/pic/common/version.c.o: CPPFLAGS += -DWEIR_VERSION='"$(VERSION)"' -DWEIR_BUILD_ID='"$(BUILD_ID)"'
$(B)/pic/common/version.c.o: $(B)/build-id

# What the kernels take of a multiprocessor must not grow unseen.
cuda-resources: $(CUDA_PLUGIN)
	@tests/gpu/resources.sh $(B)

.PHONY: cuda cuda-resources
