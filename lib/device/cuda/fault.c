/* fault.c - reads the words where kernels report an invalid index, and makes the message. */
#include "device/cuda/fault.h"

#include <stdio.h>

#include "device/ops/ops.h"

/* The nouns of the CPU's messages. */
static const char *things(enum vfm_op_id op, const char **what)
{
	*what = "an element";
	switch (op) {
	case VFM_OP_moe_own:
		return "tokens";
	case VFM_OP_moe_topk_token_bwd:
	case VFM_OP_moe_sort:
	case VFM_OP_moe_count:
		return "experts";
	case VFM_OP_decode_weights:
		*what = "an index";
		return "scales";
	default:
		*what = "an index";
		return "rows";
	}
}

int vfm_faults_check(const volatile uint64_t *words, struct vfm_err *err)
{
	static const char *const names[] = {
#define X(name) #name,
		VFM_OP_LIST(X)
#undef X
	};
	char text[VFM_ERR_MAX];
	size_t len = 0;

	for (int op = 0; op < VFM_OP_N; op++) {
		uint64_t w = words[op];
		const char *what, *of;

		if (w == 0)
			continue;
		of = things((enum vfm_op_id)op, &what);
		if (len < sizeof(text))
			len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%s: %s is %d, but there are %u %s",
				len ? "; " : "", names[op], what, (int)(int32_t)(uint32_t)w, (unsigned)(w >> 32) - 1,
				of);
	}
	return len ? vfm_fail(err, VFM_EUSAGE, "%s", text) : 0;
}
