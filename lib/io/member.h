/* member.h - names of inputs that are members of tars, and the opening of inputs.
 *
 * An input is a regular file, named by its path, or a member of a tar on disk:
 *
 *	TAR@OFFSET+SIZE/MEMBER		shards/000001.tar@1536+48211/clips/a.mp4
 *
 * OFFSET is the byte of TAR at which the first header of the member begins (that of its long name, if it has one), SIZE
 * the bytes of its content, and MEMBER its name in the tar.  Both numbers are decimal, without a leading zero.  The
 * text alone decides: a name with "@DIGITS+DIGITS/" in it is that of a member, and TAR ends at the first such place.
 * Opening reads one header, and compares name and size with it; no tar is searched.  MEMBER stands last, so that the
 * ending of the whole name is that of the content.
 */
#ifndef VFM_IO_MEMBER_H
#define VFM_IO_MEMBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct vfm_member_name { /* parts of a name, which it borrows */
	size_t tar_len;  /* bytes of TAR */
	uint64_t offset, size;
	const char *member;
};

/* Returns whether a name is that of a member, and its parts; n NULL: whether alone. */
bool vfm_member_parse(struct vfm_member_name *n, const char *name);

/* Returns the name of a member; the caller frees it.  A tar whose own path has the form of a member has none. */
char *vfm_member_name(const char *tar, uint64_t offset, uint64_t size, const char *member);

/* The bytes of an input: [at, at + size) of an open regular file. */
struct vfm_input {
	int fd; /* close-on-exec; the caller closes it */
	uint64_t at, size;
};

/* Opens a file, or the member of a tar.  VFM_EINPUT: there is none, it is no regular file, or the tar has no such
 * member at this place, which the message says (the tar was changed or truncated).  VFM_EENV as vfm_open_regular. */
int vfm_input_open(struct vfm_input *in, const char *name, struct vfm_err *err);

#endif
