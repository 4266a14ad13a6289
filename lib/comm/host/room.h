/* comm/host - communicators of processes, over shared memory and TCP.
 *
 * The handshake of connections, the flight recorder, and a tree of monitors that notices a rank that ended or hangs,
 * and tells all others.
 *
 * Used by: train; comm/device, whose communicators are built on these
 * Calls: base, comm/coll, comm/launch, io
 * Read first: comm_host.h, host_job.h, monitor_impl.h
 */
