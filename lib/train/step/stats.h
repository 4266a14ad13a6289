/* stats.h - times and memory of a training step on one rank, and their reduction over the ranks.
 *
 * One table gives each statistic's name, reduction and unit to the collective, the records of vfm-train(1),
 * TensorBoard's events and vfm-bench-step(1).  A new statistic needs a field, a row of the table, and an entry in
 * vfm-train(1).
 */
#ifndef VFM_TRAIN_STEP_STATS_H
#define VFM_TRAIN_STEP_STATS_H

#include "comm/coll/comm.h"

/* Contains only doubles. */
struct vfm_rank_stats {
	double data_wait_s; /* wait for packs */
	/* stalls of the compute stream (device/dev/stall.h) */
	double comm_s;   /* exposed communication */
	double bubble_s; /* pipeline bubble: idle time while waiting for other pp stages */
	double copy_s;   /* copies between device and host: offload, checkpoints */
	double host_s;   /* host time to enqueue the step, without waits for packs, ranks and the device */
	double step_s;   /* duration */
	double ahead_s;  /* lead of the host over the device after enqueueing; near 0 the device waits for the host */
	double mem_peak_bytes; /* peak device memory */
	double read_bytes;     /* read from shards, for this step or ahead */
	double replaced;       /* damaged samples, divided by the ranks that use the same pack */
	double tuned;          /* ops that were timed or checked at their first use; set by benchmarks */
};

enum vfm_stat_reduce { VFM_STAT_MEAN, VFM_STAT_MAX, VFM_STAT_SUM };

struct vfm_stat {
	const char *key; /* key in records; NULL: not in records */
	size_t offset;   /* in struct vfm_rank_stats */
	enum vfm_stat_reduce reduce;
	double scale; /* factor from the statistic to its unit in records */
};
enum { VFM_STATS = 11 };
extern const struct vfm_stat vfm_stats[VFM_STATS];

double *vfm_stat_at(struct vfm_rank_stats *s, int i); /* returns statistic i of the table */

/* Collective with the same n.  Reduces s [n], the statistics of n consecutive steps, over the ranks of c in place.  The
 * first `known` entries are valid on this rank.  Returns the number of entries valid on all ranks, and reduces only
 * these; negative on error.  Uses one host all-gather. */
int vfm_rank_stats_reduce(struct vfm_comm *c, struct vfm_rank_stats *s, int n, int known, struct vfm_err *err);

#endif
