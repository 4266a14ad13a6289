/* host_impl.h - shared by the host communicators.
 *
 *   comm_host.c   makes, splits and frees communicators; dispatches every call
 *   comm_shm.c    shared memory of the node, barriers in it
 *   shm_coll.c    collectives of ranks on one node
 *   handshake.c   both ends of a connection prove that they are ranks of this job
 *   comm_net.c    addresses, connections, messages over sockets
 *   net_coll.c    collectives of ranks on several nodes; exchange
 *   host_job.c    the state of the job: failure, waits, calls; the flight recorder
 *   monitor.c     finds failed ranks (monitor_impl.h)
 */
#ifndef VFM_COMM_HOST_HOST_IMPL_H
#define VFM_COMM_HOST_HOST_IMPL_H

#include <sys/socket.h>

#include "comm/coll/comm_sum.h"
#include "comm/host/handshake.h"
#include "comm/host/host_job.h"

/* ---- comm_host.c ---- */
/* The signature of a call, which must be equal on all ranks of the communicator. */
struct vfm_call_sig {
	uint64_t number;
	uint32_t kind, dtype;
	uint64_t bytes; /* of the whole operand; 0 if it may differ between ranks */
	uint64_t hash;  /* of the counts that all ranks share */
};
struct vfm_call_sig vfm_coll_sig(const struct vfm_hcomm *g, const struct vfm_coll *c); /* of the last collective */

/* Return the bytes of rank i's block, and the offset of that block. */
size_t vfm_coll_bytes_of(const struct vfm_hcomm *g, const struct vfm_coll *c, const int64_t *count, int i);
size_t vfm_coll_offset_of(const struct vfm_hcomm *g, const struct vfm_coll *c, const int64_t *count, int i);

/* ---- monitor.c ---- */
int vfm_monitor_start(struct vfm_hjob *j, struct vfm_err *err); /* accepts connections from now on */
int vfm_monitor_join(struct vfm_hjob *j, struct vfm_err *err);  /* connects to the parent */
void vfm_monitor_report(struct vfm_hjob *j, const char *why);   /* reports a failure of this rank; does not wait */
void vfm_monitor_stop(struct vfm_hjob *j);                      /* sends a goodbye first */

/* ---- comm_shm.c ---- */
uint64_t vfm_shm_reserve(struct vfm_hjob *j, int n); /* the offset of a new segment for n ranks */
int vfm_shm_map(struct vfm_hcomm *g, uint64_t at, struct vfm_err *err);
void vfm_shm_unmap(struct vfm_hcomm *g);

/* Each epoch ends with a barrier: a rank writes to its slot, passes the barrier, and reads the slots of the others.  A
 * slot keeps its contents until the barrier after the next one. */
struct shm_meta {
	struct vfm_call_sig sig;
	uint64_t addr; /* address of an operand in the rank that owns the slot */
	int32_t pid, pad;
	uint64_t max;
	uint64_t table[]; /* [n] all_to_all: bytes for each rank */
};
/* Return the header and the data of a rank's slot in an epoch. */
struct shm_meta *vfm_slot_meta(struct vfm_shm *s, uint64_t epoch, int rank);
char *vfm_slot(struct vfm_shm *s, uint64_t epoch, int rank);
/* Blocks until all ranks have arrived; increments the epoch. */
int vfm_shm_barrier(struct vfm_hcomm *g, struct vfm_err *err);
int vfm_shm_coll(struct vfm_hcomm *g, const struct vfm_coll *c, struct vfm_err *err);

/* ---- comm_net.c ---- */
int vfm_net_open(struct vfm_hjob *j, struct vfm_err *err); /* listens, and publishes this rank's endpoint */
void vfm_net_close(struct vfm_hjob *j);
/* Raises the soft limit of open files if necessary.  VFM_EENV: the limit is too low for the connections of a rank.
 * These are the ones of its monitor, and two for each factor of two of the ranks in collectives. */
int vfm_net_reserve_files(struct vfm_hjob *j, int monitors, struct vfm_err *err);
/* Returns the endpoint of a rank, which the first call fetches, or NULL on failure.  Any thread may call it.  The job
 * owns the endpoint. */
const struct vfm_endpoint *vfm_endpoint_of(struct vfm_hjob *j, int rank, struct vfm_err *err);
/* VFM_EENV: the endpoints of this rank and of `to` are incompatible, so that no connection can be made. */
int vfm_net_check(struct vfm_hjob *j, int to, struct vfm_err *err);
/* Starts to connect to address 0 .. vfm_net_addresses - 1 of a rank.  Returns the socket, or -1 with errno set.
 * ECONNREFUSED: no process of this user listens there. */
int vfm_net_dial(struct vfm_hjob *j, int to, int addr);
int vfm_net_addresses(struct vfm_hjob *j, int to); /* 0: the endpoint cannot be fetched */
/* Waits for at most ms milliseconds.  Returns 0 if the socket is connected, EINPROGRESS, or the errno of the
 * failure. */
int vfm_net_dialed(int fd, int ms);
/* Connects to world rank `to` with a handshake.  Retries until 30 s or the job's time-out; fails earlier if the rank no
 * longer listens.  The caller owns *fd. */
int vfm_net_connect(struct vfm_hjob *j, int to, enum vfm_hello_kind kind, uint64_t group, int *fd, struct vfm_err *err);
int vfm_net_recv_fd(int sock, int *fd);
int vfm_net_send_fd(int sock, int fd);

/* Sends and receives at the same time; -1 omits that side.  Both ranks of a message give the same size. */
int vfm_net_exchange(struct vfm_hcomm *g, const struct vfm_call_sig *sig_out, int to, const void *out, size_t n_out,
	const struct vfm_call_sig *sig_in, int from, void *in, size_t n_in, struct vfm_err *err);
int vfm_net_coll(struct vfm_hcomm *g, const struct vfm_coll *c, struct vfm_err *err);

static inline size_t vfm_min_size(size_t a, size_t b)
{
	return a < b ? a : b;
}

#endif
