/* stall.h - measures stalls of the compute stream: exposed communication, pipeline bubbles, host-device copies.
 *
 * On an asynchronous device, each stall lies between two timed events of a ring; the events are read once the step has
 * passed.  The ring holds up to 262,144 unread stalls; later ones are not measured.  On a synchronous device, the
 * host's waits for asynchronous streams count.
 *
 * A device has at most one measurement, on its compute stream.  Only the thread of the compute stream may call these
 * functions.
 */
#ifndef VFM_DEVICE_DEV_STALL_H
#define VFM_DEVICE_DEV_STALL_H

#include "device/dev/dev.h"

enum vfm_stall {
	VFM_STALL_COMM,   /* exposed communication */
	VFM_STALL_BUBBLE, /* waiting for other pp stages */
	VFM_STALL_COPY,   /* copies between host and device */
	VFM_STALLS
};

/* Mark the begin and end of a stall of s.  Nested stalls count for the outermost reason.  No-op on a stream that is not
 * measured. */
void vfm_stall_begin(struct vfm_stream *s, enum vfm_stall why);
void vfm_stall_end(struct vfm_stream *s);
/* Calls vfm_stall_begin, event_wait and vfm_stall_end. */
int vfm_stall_wait(struct vfm_event *e, struct vfm_stream *s, enum vfm_stall why, struct vfm_err *err);

/* Starts a measurement on the compute stream s. */
struct vfm_stalls *vfm_stalls_new(struct vfm_stream *s);
void vfm_stalls_free(struct vfm_stalls *st); /* the stream must have passed; no-op for NULL */

/* Returns the position after all stalls that were enqueued so far. */
int64_t vfm_stalls_mark(const struct vfm_stalls *st);
/* Sets s to the seconds of each reason between positions a and b; the stream must have passed b.  Discards all stalls
 * before b. */
void vfm_stalls_between(struct vfm_stalls *st, int64_t a, int64_t b, double s[VFM_STALLS]);

#endif
