/* ts.h - faults of an MPEG transport stream (ISO/IEC 13818-1) that the demuxer ignores silently.  Thread-safe: no
 * shared state.
 */
#ifndef VFM_MEDIA_AV_TS_H
#define VFM_MEDIA_AV_TS_H

#include <stdint.h>

#include "base/clock.h"
#include "base/err.h"

/* Reads the file `path` (or the member of a tar) once, and counts
 *
 * - places where a packet does not begin with the sync byte
 * - an incomplete last packet: the file was cut
 * - packets of `pid` whose header begins a PES packet but that have no start code: the payload was overwritten
 *
 * Packets have 188, 192 or 204 bytes; *faults is 0 if the file has no such packets.  VFM_EINPUT, VFM_EENV: a read
 * failed, or the limit is over. */
int vfm_ts_faults(const char *path, int pid, const struct vfm_limit *limit, int64_t *faults, struct vfm_err *err);

#endif
