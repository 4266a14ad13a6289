/* recorder.h - the flight recorder: the last collectives of this rank, written out when the job fails. */
#ifndef VFM_COMM_HOST_RECORDER_H
#define VFM_COMM_HOST_RECORDER_H

#include "comm/host/host_job.h"

/* Starts a record and returns its number.  peer: world rank, or -1. */
uint64_t vfm_record_begin(struct vfm_hjob *j, const char name[16], int kind, uint64_t number, uint64_t bytes, int peer);
void vfm_record_end(struct vfm_hjob *j, uint64_t which);
void vfm_record_dump(struct vfm_hjob *j, const char *why);

#endif
