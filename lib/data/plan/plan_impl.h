/* plan_impl.h - shared by the two encodings of a plan; private. */
#ifndef VFM_DATA_PLAN_PLAN_IMPL_H
#define VFM_DATA_PLAN_PLAN_IMPL_H

#include "base/map.h"
#include "base/mem.h"
#include "data/plan/plan.h"

#define PLAN_TYPE       "vfm-manifest"
#define PLAN_MAX_HEADER ((size_t)16 << 20)
#define PLAN_MAX_LINE   ((size_t)1 << 28)

/* The binary file (vfm-plan(5)); all numbers little endian. */
#define BIN_MAGIC "VFMMANI1"
#define BIN_FIXED                                                                                                      \
	64 /* magic, header_len u32, header_crc u32, n_packs, n_samples, samples_off, packs_off, size u64, 0 u32, crc  \
	      u32 */
#define BIN_SAMPLE 16 /* set u16, 0 u16, shard u32, index u32, tokens u32 */
#define BIN_PACK   32 /* first_sample u64, n_samples u32, crc u32, tokens u32, cp u32, cost f64 */
#define BIN_ALIGN  64

struct vfm_plan {
	char *path;
	uint64_t serial; /* of the open; identifies the plan whose position a step stores */
	struct vfm_map map;
	struct vfm_plan_header h;
	struct vfm_arena arena;
	json_t *forced; /* of the header */
	bool bin;
	size_t body;                    /* jsonl: start of the second line */
	const uint8_t *samples, *packs; /* bin */
	uint64_t n_packs, n_samples;
};

int vfm_plan_parse_header(struct vfm_plan *m, const char *text, size_t len, struct vfm_err *err);
int vfm_plan_check_cp(const struct vfm_plan *m, int32_t pack, int64_t cp, struct vfm_err *err);
int vfm_plan_check_pack(const struct vfm_plan *m, const struct vfm_plan_pack *p, const struct vfm_plan_sample *samples,
	struct vfm_err *err);
int vfm_plan_bin_open(struct vfm_plan *m, struct vfm_err *err);
int vfm_plan_bin_step(const struct vfm_plan *m, int64_t step, struct vfm_plan_step *out, struct vfm_err *err);

#endif
