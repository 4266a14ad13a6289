/* comm_sim_impl.h - shared by comm_sim.c, the communicators of host memory, and comm_sim_transport.c. */
#ifndef VFM_COMM_DEVICE_COMM_SIM_IMPL_H
#define VFM_COMM_DEVICE_COMM_SIM_IMPL_H

#include "comm/device/comm_sim.h"
#include "comm/device/transport.h"
#include "device/sim/libraries.h"
#include "device/sim/network.h"

/* The ranks of a communicator, in its order. */
struct members {
	int *rank; /* [n] ranks of the job */
	int n;
	uint64_t id; /* equal on all */
	/* the simulated ranks that take part in its meetings, ascending, and the index of this one */
	int *rep, n_reps, place;
	bool own;    /* each simulated rank represents only itself, and these are all ranks */
	bool uneven; /* they do unequal work */
};

struct sim_comm {
	struct vfm_comm c; /* first */
	struct vfm_comm_sim_rank *r;
	struct members of;
	uint64_t calls;
	struct vfm_transport_comm *device; /* for calls on streams of a CPU; NULL: a device communicator has its own */
};

struct vfm_transport_comm {
	struct vfm_comm_sim_rank *r;
	struct members of;
	struct vfm_sim_span span;
	char name[16];
	int me;
	uint64_t calls, known_calls, *pair_calls; /* pair_calls [n_reps]: messages with each simulated rank */
	struct vfm_sim_nccl use;
	int64_t bytes; /* device memory that it uses */
	bool *met;     /* [n] peers of messages */
};

static inline struct sim_comm *sim_comm_of(struct vfm_comm *c)
{
	return (struct sim_comm *)c;
}

struct members comm_sim_members_copy(const struct members *m, int max_reps);
void comm_sim_members_release(struct members *m);
int comm_sim_member_node(const struct vfm_comm_sim_rank *r, const struct members *of, int i);

/* Waits until all ranks have arrived at a meeting.  what and of are for the error. */
int comm_sim_meeting_wait(const struct vfm_comm_sim_rank *r, const struct vfm_sim_meeting *m, const char *what,
	const char *of, struct vfm_err *err);

/* Makes the device side of a communicator of host memory. */
struct vfm_transport_comm *comm_sim_transport_new(struct vfm_comm_sim_rank *r, struct vfm_comm *host, bool p2p);
void comm_sim_transport_free(struct vfm_transport_comm *w);
/* Enqueues a call on the stream of a CPU, whose device communicators are those of host memory. */
int comm_sim_enqueue_group(struct sim_comm *g, struct vfm_stream *s, const struct vfm_coll *c, struct vfm_err *err);
/* As comm_sim_enqueue_group for at most one message in each direction. */
int comm_sim_enqueue_exchange(struct sim_comm *g, struct vfm_stream *s, const struct vfm_coll *c, struct vfm_err *err);

#endif
