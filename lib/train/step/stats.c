/* stats.c - the table of statistics, and their mean, maximum or sum over the ranks. */
#include "train/step/stats.h"

#include <stdlib.h>

#include "base/mem.h"

#define AT(field) offsetof(struct vfm_rank_stats, field)

const struct vfm_stat vfm_stats[VFM_STATS] = {
	{"data_wait_ms", AT(data_wait_s), VFM_STAT_MAX, 1e3},
	{"comm_ms", AT(comm_s), VFM_STAT_MEAN, 1e3},
	{"bubble_ms", AT(bubble_s), VFM_STAT_MEAN, 1e3},
	{"copy_ms", AT(copy_s), VFM_STAT_MEAN, 1e3},
	{"host_ms", AT(host_s), VFM_STAT_MAX, 1e3},
	{"step_ms", AT(step_s), VFM_STAT_MAX, 1e3},
	{NULL, AT(ahead_s), VFM_STAT_MEAN, 1e3},
	{"mem_gib", AT(mem_peak_bytes), VFM_STAT_MAX, 0x1p-30},
	{"read_mib", AT(read_bytes), VFM_STAT_SUM, 0x1p-20},
	{"replaced", AT(replaced), VFM_STAT_SUM, 1},
	{NULL, AT(tuned), VFM_STAT_SUM, 1},
};
_Static_assert(sizeof(struct vfm_rank_stats) == VFM_STATS * sizeof(double), "a row for each field");

double *vfm_stat_at(struct vfm_rank_stats *s, int i)
{
	return (double *)((char *)s + vfm_stats[i].offset);
}

static double reduce_stat(enum vfm_stat_reduce how, const double *x, int ranks, int64_t stride)
{
	double y = x[0];

	for (int r = 1; r < ranks; r++) {
		double z = x[r * stride];

		y = how != VFM_STAT_MAX ? y + z : z > y ? z : y;
	}
	return how == VFM_STAT_MEAN ? y / ranks : y;
}

int vfm_rank_stats_reduce(struct vfm_comm *c, struct vfm_rank_stats *s, int n, int known, struct vfm_err *err)
{
	int64_t width = 1 + (int64_t)n * VFM_STATS; /* known, followed by the statistics of each step */
	double *own = vfm_calloc((size_t)width, sizeof(*own)),
	       *all = vfm_calloc((size_t)(c->size * width), sizeof(*all));
	int rc;

	own[0] = known;
	for (int k = 0; k < known; k++)
		for (int i = 0; i < VFM_STATS; i++)
			own[1 + k * VFM_STATS + i] = *vfm_stat_at(&s[k], i);
	TRY_OUT(vfm_all_gather(c, NULL, vfm_t1(own, VFM_F64, width), vfm_t1(all, VFM_F64, c->size * width), NULL, err));
	rc = known;
	for (int r = 0; r < c->size; r++)
		if (all[r * width] < rc)
			rc = (int)all[r * width];
	for (int k = 0; k < rc; k++)
		for (int i = 0; i < VFM_STATS; i++)
			*vfm_stat_at(&s[k], i) =
				reduce_stat(vfm_stats[i].reduce, all + 1 + k * VFM_STATS + i, c->size, width);
out:
	free(own);
	free(all);
	return rc;
}
