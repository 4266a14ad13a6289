/* stats.h - times and memory of a training step on one rank, and their reduction over the ranks.
 *
 * One table names each statistic, its reduction and its unit.  The collective, the records of vfm-train(1),
 * TensorBoard's events and the results of vfm-bench(1) follow it; a new statistic is a field, a row of the table, and
 * an entry in vfm-train(1), which tests/cli/train.t compares with the records.
 */
#ifndef VFM_TRAIN_STATS_H
#define VFM_TRAIN_STATS_H

#include "comm/comm.h"

/* Only doubles. */
struct vfm_rank_stats {
	double data_wait_s; /* the step waited for its packs */
	/* stalls of the compute stream (dev/stall.h) */
	double comm_s;   /* exposed communication */
	double bubble_s; /* waiting for other pipeline stages: idle time that follows from the schedule */
	double copy_s;   /* copies between device and host: offload, checkpoints */
	double host_s;   /* the host enqueued the step, without its waits for packs, ranks and the device */
	double step_s;   /* duration */
	double ahead_s;  /* the host was ahead of the device after enqueueing; near 0 the device waits for the host */
	double mem_peak_bytes; /* device memory */
};

enum vfm_stat_reduce { VFM_STAT_MEAN, VFM_STAT_MAX };

struct vfm_stat {
	const char *key; /* in records; NULL: not in records */
	size_t offset;   /* in struct vfm_rank_stats */
	enum vfm_stat_reduce reduce;
	double scale; /* from the statistic to its unit in records */
};
enum { VFM_STATS = 8 };
extern const struct vfm_stat vfm_stats[VFM_STATS];

double *vfm_stat_at(struct vfm_rank_stats *s, int i); /* statistic i of the table */

/* Reduces s [n], one for each of n consecutive steps, over the ranks of c, in place.  This rank knows the first `known`
 * of them.  Returns how many all ranks know, which are those that are reduced; negative: an error.  One all-gather over
 * the host; collective with the same n. */
int vfm_rank_stats_reduce(struct vfm_comm *c, struct vfm_rank_stats *s, int n, int known, struct vfm_err *err);

#endif
