/* thrift.h - reads structs in Thrift's compact protocol, in which Parquet writes its metadata.
 *
 *	struct vfm_thrift t = {.p = bytes, .end = bytes + n};
 *	struct vfm_thrift_field f = {0};
 *	while (vfm_thrift_field(&t, &f))
 *		if (f.id == 1)
 *			n = vfm_thrift_int(&t, &f);
 *		else
 *			vfm_thrift_skip(&t, &f);
 *	if (t.bad)
 *		...
 *
 * Each field is read or skipped exactly once.  A fault (an end within a value, a value of another type, structs nested
 * more than 32 deep) sets `bad`; from then on all fields end, and all values are 0.  Nothing is allocated: texts point
 * into the input.  Source: the Apache Thrift specification, thrift-compact-protocol.md.
 */
#ifndef VFM_CURATE_TABLE_THRIFT_H
#define VFM_CURATE_TABLE_THRIFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vfm_thrift {
	const uint8_t *p, *end;
	bool bad;
	int depth; /* of structs and lists that are being skipped */
};

struct vfm_thrift_field {
	int id; /* 0 before the first field of a struct */
	int type;
};

/* Returns whether the struct has another field, and sets *f to it. */
bool vfm_thrift_field(struct vfm_thrift *t, struct vfm_thrift_field *f);
void vfm_thrift_skip(struct vfm_thrift *t, const struct vfm_thrift_field *f);

/* The value of a field of this type. */
int64_t vfm_thrift_int(struct vfm_thrift *t, const struct vfm_thrift_field *f);
bool vfm_thrift_bool(struct vfm_thrift *t, const struct vfm_thrift_field *f);
const char *vfm_thrift_text(struct vfm_thrift *t, const struct vfm_thrift_field *f, size_t *len); /* no NUL; or NULL */
/* Begins a struct: the caller reads its fields.  Returns whether the field is one. */
bool vfm_thrift_struct(struct vfm_thrift *t, const struct vfm_thrift_field *f);
/* Begins a list, and sets *element to a field of the type of its elements, each of which the caller reads.  Returns
 * their number, at most the bytes that are left. */
size_t vfm_thrift_list(struct vfm_thrift *t, const struct vfm_thrift_field *f, struct vfm_thrift_field *element);

/* An unsigned number in groups of 7 bits, the lowest first (ULEB128), and a signed one, its sign in the lowest bit. */
uint64_t vfm_thrift_varint(struct vfm_thrift *t);
int64_t vfm_thrift_zigzag(struct vfm_thrift *t);

#endif
