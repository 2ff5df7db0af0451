# SPDX-License-Identifier: Apache-2.0
#
# nvcc.mk: how a .cu file is compiled, and when again. GNU make; configure puts it into the Makefile as
# it stands, as automake would take offence at it.

# The variable NAME_$1 of the file $2 (without suffix) or of the nearest folder around it that has one:
# of plugins/fa3_like/kernels/decode one of decode_, kernels_, fa3_like_, plugins_.
nvcc_nearest = $(or $($(notdir $2)_$1),$(if $(filter-out ./,$(dir $2)),$(call nvcc_nearest,$1,$(patsubst %/,%,$(dir $2)))))

# Architectures, as nvcc calls them: sm_90a is a cubin, compute_80 PTX. A draft is for the last of them alone.
nvcc_all_codes = $(strip $(or $(call nvcc_nearest,GENCODE,$1),$(NVCC_CODES)))
nvcc_codes = $(if $(nvcc_draft),$(lastword $(nvcc_all_codes)),$(nvcc_all_codes))
nvcc_gencode = $(foreach code,$(nvcc_codes),-gencode arch=$(code:sm_%=compute_%),code=$(code))
nvcc_flags = $(if $(call nvcc_left_out,$1),left out,$(call nvcc_all_flags,$1))
nvcc_all_flags = $(strip -std=c++17 $(nvcc_gencode) -Xptxas -v $(if $(nvcc_draft),$(filter-out -lineinfo,$(NVCCFLAGS)),$(NVCCFLAGS)) $(call nvcc_nearest,NVCCFLAGS,$1) $(nvcc_draft) $(PLUGIN_CPPFLAGS))

# In a build for tests without a GPU (configure --with-cuda-part=K) every twelfth .cu file is optimised, the K-th first;
# the others of folders with NAME_DRAFT = yes are drafts, which compile in a sixth of the time, are slow, and know no lines.
# With --without-cuda-drafts these are left out: their images are empty, which the fake driver of the tests loads, too.
nvcc_optimised := $(if $(NVCC_PART),$(shell cd $(srcdir) && find plugins -name '*.cu' | LC_ALL=C sort | sed -n 's/[.]cu$$//; $(NVCC_PART)~12p'))
nvcc_draft = $(if $(NVCC_PART),$(if $(filter $1,$(nvcc_optimised)),,$(if $(call nvcc_nearest,DRAFT,$1),-Ofc=max)))
nvcc_left_out = $(if $(filter no,$(NVCC_DRAFTS)),$(nvcc_draft))

# The same of the target at hand, for recipes: what it is compiled with, its file of dependencies.
NVCC_CODES_HERE = $(call nvcc_codes,$*)
NVCC_FLAGS_HERE = $(call nvcc_flags,$*)
NVCC_DRAFT_HERE = $(call nvcc_draft,$*)
NVCC_LEFT_OUT_HERE = $(call nvcc_left_out,$*)
NVCC_DEPENDENCIES = .deps/nvcc/$(subst /,-,$*).d

# For sed: without the lines of -Xptxas -v, and of drafts without what slows them.
NVCC_USAGE_LINES = $(if $(NVCC_DRAFT_HERE),-e '/^ptxas info .*Performance Loss/d') -e '/^ptxas info *: \([0-9]\|Compil\|Function properties\|Used\)/d' -e '/^ *[0-9]* bytes stack frame/d'

# What nvcc found to be included; and a line that makes a file anew whose compiler or flags have changed.
-include $(wildcard .deps/nvcc/*.d)
nvcc-flags-changed:
.PHONY: nvcc-flags-changed
