/* upload.h - copies of small arrays from ordinary memory to a device, which overlap work of the compute stream.
 *
 *     vfm_upload_begin(u, err);
 *     vfm_dev_upload(stream, dst, host, bytes, err);     any number, of memory allocated meanwhile, too
 *     vfm_upload_end(u, &done, err);
 *     … the compute stream works on something else …
 *     event_wait(done, stream)
 *
 * Arrays are gathered in one of two pinned buffers and copied on a stream of their own.  The copies begin when the work
 * that the compute stream has at vfm_upload_end is done, because it may use dst.
 */
#ifndef VFM_DEVICE_DEV_UPLOAD_H
#define VFM_DEVICE_DEV_UPLOAD_H

#include "device/dev/dev.h"

struct vfm_upload;

/* Uploads for the compute stream s of an asynchronous device.  free blocks until all copies are done; no-op for NULL.
 */
struct vfm_upload *vfm_upload_new(struct vfm_stream *s, struct vfm_err *err);
void vfm_upload_free(struct vfm_upload *u);

/* Until end, calls of vfm_dev_upload on the stream are gathered.  Blocks until the copies of the upload before the last
 * one are done. */
int vfm_upload_begin(struct vfm_upload *u, struct vfm_err *err);
/* Enqueues the copies.  The compute stream must wait for *done before it reads or frees their destinations, and before
 * the begin after next; u owns the event.  After a failure of a copy, rc < 0 is returned and nothing is gathered any
 * more; *done is set all the same. */
int vfm_upload_end(struct vfm_upload *u, struct vfm_event **done, struct vfm_err *err);

/* Copies to device memory, in the order of s, the compute stream, or with the others of an open upload.  The caller may
 * reuse host on return.  host NULL: zeros. */
int vfm_dev_upload(struct vfm_stream *s, void *dst, const void *host, size_t bytes, struct vfm_err *err);

#endif
