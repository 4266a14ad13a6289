/* key.h - a configuration key: one row with its type, range and offset in a struct parses, prints and checks it. */
#ifndef VFM_IO_KEY_H
#define VFM_IO_KEY_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum vfm_key_type {
	VFM_KEY_INT,      /* int64_t */
	VFM_KEY_AUTO,     /* int64_t, or "auto": -1 */
	VFM_KEY_SEED,     /* uint64_t */
	VFM_KEY_NUM,      /* double */
	VFM_KEY_BOOL,     /* bool */
	VFM_KEY_ENUM,     /* int */
	VFM_KEY_INT3,     /* int64_t [3] */
	VFM_KEY_NUM3,     /* double [3] */
	VFM_KEY_NAME,     /* char [VFM_KEY_NAME_SIZE] */
	VFM_KEY_WEIGHTS,  /* struct vfm_name_weights */
	VFM_KEY_PATTERNS, /* struct vfm_patterns */
};

#define VFM_WEIGHTS_MAX   16
#define VFM_KEY_NAME_SIZE 16

struct vfm_name_weights { /* names with weights, in ascending order of the names */
	int n;
	struct {
		char name[32];
		double weight; /* >= 0, finite */
	} list[VFM_WEIGHTS_MAX];
};

struct vfm_patterns { /* comma-separated; "" matches nothing */
	char text[512];
};
/* Matches a name against the patterns, with the wildcards * ?  [] of fnmatch(3).  The last matching pattern decides; a
 * pattern that begins with '!' excludes names. */
bool vfm_patterns_match(const struct vfm_patterns *p, const char *name);

struct vfm_key {
	const char *path; /* "model.heads" */
	enum vfm_key_type type;
	size_t off; /* of the value in its struct */
	double min, max;
	const char *const *names; /* of an enum or a name, NULL-terminated */
	const int *values;        /* of an enum; NULL: 0, 1, 2 ... */
	const char *help;
};

/* Sets the value of k, which is not VFM_KEY_WEIGHTS, in the struct at `base`.  VFM_EUSAGE: v is of another type or out
 * of range; the message names the key. */
int vfm_key_set(void *base, const struct vfm_key *k, const json_t *v, struct vfm_err *err);
json_t *vfm_key_json(const void *base, const struct vfm_key *k); /* the same value; the caller owns it */

/* Checks the value of k in the struct at `base`: numbers must lie in the range.  VFM_EUSAGE names key, range and
 * value. */
int vfm_key_check_value(const void *base, const struct vfm_key *k, struct vfm_err *err);
/* As vfm_key_check_value for one value: lo <= v <= hi. */
int vfm_key_check_int(const char *path, int64_t v, int64_t lo, int64_t hi, struct vfm_err *err);

/* Fails with VFM_EUSAGE: "model.pos: expected one of rope, sincos, got 'x'".  `names` is NULL-terminated.  got is NULL
 * if the value is not a string. */
int vfm_key_fail_name(const char *path, const char *const *names, const char *got, struct vfm_err *err);

#endif
