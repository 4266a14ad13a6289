/* upload.h - copies small arrays from ordinary memory to a device, overlapped with work of the compute stream.
 *
 *     vfm_upload_begin(u, err);
 *     vfm_dev_upload(stream, dst, host, bytes, err);     any number of times; dst may be allocated in between
 *     vfm_upload_end(u, &done, err);
 *     … the compute stream works on something else …
 *     event_wait(done, stream)
 *
 * The arrays are collected in one of two pinned buffers and copied on a separate stream.  The copies begin when the
 * compute stream has finished the work that it has at vfm_upload_end, because this work may use dst.
 */
#ifndef VFM_DEVICE_DEV_UPLOAD_H
#define VFM_DEVICE_DEV_UPLOAD_H

#include "device/dev/dev.h"

struct vfm_upload;

/* Creates uploads for the compute stream s of an asynchronous device.  free blocks until all copies are done; no-op for
 * NULL. */
struct vfm_upload *vfm_upload_new(struct vfm_stream *s, struct vfm_err *err);
void vfm_upload_free(struct vfm_upload *u);

/* Until vfm_upload_end, calls of vfm_dev_upload on the stream are collected.  Blocks until the copies of the upload
 * before the last one are done. */
int vfm_upload_begin(struct vfm_upload *u, struct vfm_err *err);
/* Enqueues the copies.  The compute stream must wait for *done before it reads or frees their destinations, and before
 * the vfm_upload_begin after the next one.  u owns the event.  If a copy fails, returns a negative code, collects
 * nothing any more, and still sets *done. */
int vfm_upload_end(struct vfm_upload *u, struct vfm_event **done, struct vfm_err *err);

/* Copies to device memory, in the order of s, the compute stream, or as part of an open upload.  host NULL: zeros.  The
 * caller may reuse host on return. */
int vfm_dev_upload(struct vfm_stream *s, void *dst, const void *host, size_t bytes, struct vfm_err *err);

#endif
