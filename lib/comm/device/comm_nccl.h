/* comm_nccl.h - NCCL as a transport, in the plugin. */
#ifndef VFM_COMM_DEVICE_COMM_NCCL_H
#define VFM_COMM_DEVICE_COMM_NCCL_H

#include "comm/device/transport.h"

extern const struct vfm_transport vfm_nccl_transport;

#endif
