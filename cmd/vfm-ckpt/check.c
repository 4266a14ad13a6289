/* vfm-ckpt check - prints one line per fault, and per tensor that is not finite, on stdout; status 1 if there are any.
 */
#include <stdio.h>

#include "base/log.h"
#include "ckpt/check.h"
#include "ckpt_cmd.h"

static void print_ckpt_fault(void *ctx, const char *what)
{
	(void)ctx;
	printf("%s\n", what);
}

int verb_check(int argc, char **argv, struct vfm_err *err)
{
	struct vfm_opt opts[] = {{0}};
	struct vfm_cmd cmd = {.name = "vfm-ckpt check",
		.synopsis = "CKPT ...",
		.summary = "read and verify every byte; look for NaN and infinities",
		.opts = opts};
	int n, bad = 0, rc = verb_parse(&cmd, argc, argv, 1, -1, &n, err);

	if (rc)
		return rc;
	for (int i = 1; i <= n; i++) {
		struct vfm_ckpt_faults f = {.fn = print_ckpt_fault};

		TRY(vfm_ckpt_check(argv[i], &f, err));
		bad += f.damaged || f.nonfinite;
		vfm_info("%s: %s", argv[i],
			f.damaged             ? "damaged"
				: f.nonfinite ? "intact, but with values that are NaN or infinite"
					      : "all well");
	}
	return bad ? VFM_EINPUT : 0;
}
