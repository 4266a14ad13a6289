/* stall.h - how long the compute stream stands still for others: communication, other pipeline stages, copies between
 * host and device.
 *
 * On a device that runs behind its host nothing holds the host, so its clock cannot tell.  There each such place is put
 * between two timed events from a ring, which are read when the step has passed.  It costs two records on the stream
 * and no memory once the ring is as long as a few steps need (of more than a quarter of a million places that nobody
 * read, the later ones are not counted).  On a device that does its work at once it is the host's waits for
 * asynchronous streams that are counted.
 *
 * One measures at a time, on a device's compute stream; whoever marks a place need not know whether anybody does.  All
 * calls by the thread of the compute stream.
 */
#ifndef VFM_DEV_STALL_H
#define VFM_DEV_STALL_H

#include "dev/dev.h"

enum vfm_stall {
	VFM_STALL_COMM,   /* communication that computing did not hide */
	VFM_STALL_BUBBLE, /* other pipeline stages */
	VFM_STALL_COPY,   /* copies to and from the host */
	VFM_STALLS
};

/* From here to the end s stands still for that reason.  Within another such place nothing is counted: the outermost
 * says why.  Does nothing on other streams than the one that is measured. */
void vfm_stall_begin(struct vfm_stream *s, enum vfm_stall why);
void vfm_stall_end(struct vfm_stream *s);
/* event_wait between the two. */
int vfm_stall_wait(struct vfm_event *e, struct vfm_stream *s, enum vfm_stall why, struct vfm_err *err);

/* Measures on the compute stream s from here on. */
struct vfm_stalls *vfm_stalls_new(struct vfm_stream *s);
void vfm_stalls_free(struct vfm_stalls *st); /* NULL is fine; what is on the stream must have passed */

/* Where the stream is now, as it was put there. */
int64_t vfm_stalls_mark(const struct vfm_stalls *st);
/* Seconds by reason between two marks; b must have passed.  What lies before b is forgotten. */
void vfm_stalls_between(struct vfm_stalls *st, int64_t a, int64_t b, double s[VFM_STALLS]);

#endif
