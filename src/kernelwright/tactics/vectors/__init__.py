"""One lane's code as code for a vector of lanes; loops and maps in vectors."""
