"""Child processes: the zygote that forks them, handing over sockets, drain, TERM and KILL.

May live here: everything about processes. May not: what runs inside them (that is named by ``module:function``).
"""
