/* phases.h - training phases: plans that one vfm-train runs one after another (vfm-plan(5), section PHASES).
 *
 *	{"v":1,"type":"vfm-stages","stages":[{"name":"images","plan":"images.jsonl","sha256":"…","held_out":"…"}, …]}
 */
#ifndef VFM_DATA_PLAN_PHASES_H
#define VFM_DATA_PLAN_PHASES_H

#include <stddef.h>

#include "base/err.h"
#include "base/mem.h"
#include "io/hash.h"

enum { VFM_PHASES_MAX = 256, VFM_PHASE_NAME_MAX = 64 };

struct vfm_phase {
	const char *name; /* also the name of its folder in RUN */
	/* path of its plan: relative to the folder of the file; after vfm_phases_load, usable as it is */
	const char *plan;
	const char *held_out;        /* likewise for the plan of its held-out data; NULL: none */
	char sha256[VFM_SHA256_HEX]; /* of the plan (vfm_plan_sha256) */
};

struct vfm_phases { /* `= {0}` before load or add */
	struct vfm_phase *v;
	int n;
	struct vfm_arena mem; /* of the strings */
};

/* VFM_EUSAGE: `name` does not have 1 to 64 letters, digits, '-', '_' and '.', or begins with '-' or '.'. */
int vfm_phase_check_name(const char *name, struct vfm_err *err);
/* Appends a copy of *s.  VFM_EUSAGE: its name is invalid or taken, or there are too many phases. */
int vfm_phases_add(struct vfm_phases *l, const struct vfm_phase *s, struct vfm_err *err);
/* Returns the index of a phase, or -1. */
int vfm_phases_find(const struct vfm_phases *l, const char *name, size_t len);

/* Reads a file; VFM_EUSAGE names its first fault.  The caller releases *l, even after a failure. */
int vfm_phases_load(struct vfm_phases *l, const char *path, struct vfm_err *err);
int vfm_phases_save(const struct vfm_phases *l, const char *path, struct vfm_err *err); /* atomic */
void vfm_phases_release(struct vfm_phases *l);

#endif
