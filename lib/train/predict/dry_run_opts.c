#include "train/predict/dry_run_opts.h"

#include <stdlib.h>

bool vfm_uneven_given(const struct vfm_uneven_opts *o)
{
	return o->expert_skew != 0 || o->straggler_cv != 0 || o->slow_rank;
}

/* "R:FACTOR" */
static int parse_slow_rank(const char *text, int64_t ranks, struct vfm_dry_run_opts *to, struct vfm_err *err)
{
	char *end;
	long rank = strtol(text, &end, 10);

	if (end != text && *end == ':' && rank >= 0 && rank < ranks) {
		to->slow_rank = (int)rank;
		to->slow_factor = strtod(end + 1, &end);
		if (!*end && to->slow_factor >= 1 && to->slow_factor <= 1000)
			return 0;
	}
	return vfm_fail(err, VFM_EUSAGE,
		"--slow-rank: expected R:FACTOR with a rank of 0 to %lld and a factor of 1 to 1000, got '%s'",
		(long long)ranks - 1, text);
}

int vfm_uneven_parse(const struct vfm_uneven_opts *o, int64_t ranks, struct vfm_dry_run_opts *to, struct vfm_err *err)
{
	if (!(o->expert_skew >= 0 && o->expert_skew <= 10))
		return vfm_fail(err, VFM_EUSAGE, "--expert-skew: expected 0 to 10, got %g", o->expert_skew);
	if (!(o->straggler_cv >= 0 && o->straggler_cv <= 1))
		return vfm_fail(err, VFM_EUSAGE, "--straggler-cv: expected 0 to 1, got %g", o->straggler_cv);
	to->expert_skew = o->expert_skew;
	to->straggler_cv = o->straggler_cv;
	return o->slow_rank ? parse_slow_rank(o->slow_rank, ranks, to, err) : 0;
}
