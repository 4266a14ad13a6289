/* comm/coll - communicators and their collectives.
 *
 * Over shared memory and TCP, over NCCL (comm_nccl.c, part of the plugin) or staged through the host, and
 * simulated.  The handshake of connections, the flight recorder.
 *
 * Used by: net/mesh, train
 * Calls: base, comm/launch, device/cuda, device/dev, device/ops, device/sim, io, spec/model
 * Read first: comm.h, comm_host.h, transport.h, comm_sim.h
 */
