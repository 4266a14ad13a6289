/* vfm-ckpt prune - removes old checkpoints. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "ckpt/find.h"
#include "ckpt/prune.h"
#include "ckpt_cmd.h"

static void print_gone(void *ctx, int64_t step)
{
	char *p = vfm_ckpt_path(ctx, step);

	printf("%s\n", p);
	free(p);
}

int verb_prune(int argc, char **argv, struct vfm_err *err)
{
	int64_t last = 0, every = 0;
	bool dry = false;
	struct vfm_opt opts[] = {
		{VFM_OPT_INT, 0, "keep-last", "N", "keep the N newest checkpoints", &last, 1, 1 << 30},
		{VFM_OPT_INT, 0, "keep-every", "N", "also keep checkpoints at multiples of N steps", &every, 0,
			HUGE_VAL},
		{VFM_OPT_FLAG, 0, "dry-run", NULL, "print the checkpoints to remove, remove nothing", &dry},
		{0},
	};
	struct vfm_cmd cmd = {.name = "vfm-ckpt prune",
		.synopsis = "--keep-last N [--keep-every N] [--dry-run] RUN",
		.summary = "remove old checkpoints",
		.opts = opts};
	struct vfm_ckpt_prune p = {.spare = -1, .deep = true, .gone = print_gone};
	struct stat st;
	char *dir;
	int n, rc = verb_parse(&cmd, argc, argv, 1, 1, &n, err);

	if (rc)
		return rc;
	if (!last)
		return vfm_fail(err, VFM_EUSAGE, "--keep-last N is missing: the number of checkpoints to keep");
	dir = vfm_strfmt("%s/ckpt", argv[1]);
	if (stat(dir, &st) != 0 || !S_ISDIR(st.st_mode)) {
		free(dir);
		dir = vfm_strdup(argv[1]);
	}
	p.keep_last = (int)last;
	p.keep_every = every;
	p.dry = dry;
	p.ctx = dir;
	if (stat(dir, &st) != 0)
		rc = vfm_fail_errno(err, VFM_EUSAGE, "cannot open '%s'", dir);
	else
		rc = vfm_ckpt_prune(dir, &p, err);
	free(dir);
	return rc;
}
